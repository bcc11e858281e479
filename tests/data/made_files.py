"""Small files in the formats of the real ones, and catalogue entries that admit them."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsteer.data.catalogue import CATALOGUE, Source

Array = np.ndarray


def idx_bytes(array: Array) -> bytes:
    """An array of bytes in IDX format."""
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def images_and_labels(points: int, classes: int, seed: int) -> tuple[Array, Array]:
    """`points` gray 5x4 images and labels that use every class."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (points, 5, 4), dtype=np.uint8)
    return images, np.arange(points, dtype=np.uint8) % classes


def cifar_bytes(points: int, seed: int) -> bytes:
    """Records of CIFAR-10's binary version."""
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (points, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    return records.tobytes()


def contents_for(name: str) -> dict[str, bytes]:
    """A small content for every file of a data set."""
    files = [file.name for file in CATALOGUE[name].files]
    if name == "cifar-10":
        return {file: cifar_bytes(3, seed) for seed, file in enumerate(files)}
    classes = CATALOGUE[name].classes
    first, second = images_and_labels(60, classes, 0), images_and_labels(50, classes, 1)
    arrays = [idx_bytes(array) for array in (*first, *second)]
    if name == "emnist-bymerge":
        arrays += [b"0\n109\n7\n", b"3\n60\n"]
    return dict(zip(files, arrays, strict=True))


def packed(data: bytes, packing: str) -> bytes:
    """Bytes packed as a file name's ending says."""
    if packing == ".gz":
        return gzip.compress(data, mtime=0)
    return lzma.compress(data) if packing == ".xz" else data


def write(folder: Path, name: str, packing: str, contents: dict[str, bytes]) -> Source:
    """Write a data set into a folder; the entry returned has the checksums of these files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for file in CATALOGUE[name].files:
        data = contents[file.name]
        ending = "" if file.name.endswith(".txt") else packing
        on_disk = packed(data, ending)
        (folder / (file.name + ending)).write_bytes(on_disk)
        digest = hashlib.sha256(on_disk if file.of_packed else data).hexdigest()
        files.append(replace(file, size=len(data), checksum=f"sha256:{digest}"))
    return replace(CATALOGUE[name], files=tuple(files))
