"""The files of a data set: find them, unpack them, make sure they are the right ones, read them.

There are readers of IDX arrays, CIFAR records and lists of indices. What they are given has the
published checksums.
"""

import gzip
import hashlib
import lzma
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.data.dataset import Images, Labels
from fedsteer.errors import DataError
from fedsteer.reading import reading

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}

# Training images and labels, test images and labels.
Parts = tuple[Images, Labels, Images, Labels]

CIFAR_RECORD = np.dtype([("label", np.uint8), ("image", np.uint8, (3, 32, 32))])


@dataclass(frozen=True)
class File:
    """One file: its name without packing, how it may be packed, and what it must contain."""

    name: str
    size: int  # bytes, unpacked
    checksum: str  # "algorithm:hexadecimal digest"
    packings: Sequence[str] = ("", ".gz")
    of_packed: bool = False  # the checksum is that of the packed file

    def found_in(self, folder: Path) -> list[Path]:
        """The file in a folder, in every packing it has there."""
        paths = (folder / (self.name + packing) for packing in self.packings)
        return [path for path in paths if path.is_file()]

    def read_first(self, paths: Sequence[Path]) -> bytes:
        """The content at the first of these paths that is not damaged."""
        for path in paths[:-1]:
            with suppress(DataError):
                return self.read(path)
        return self.read(paths[-1])

    def read(self, path: Path) -> bytes:
        """The content of this file at `path`, unpacked; refused unless it is the published one.

        MNIST and Fashion-MNIST have the same file names, shapes and number of classes.
        """
        algorithm, _, published = self.checksum.partition(":")
        with reading(path, "intact"):
            with OPENERS.get(path.suffix, open)(path, "rb") as stream:
                content: bytes = stream.read(self.size + 1)  # a bomb goes no further
            if len(content) > self.size:
                raise DataError(f"not the published file but more than {self.size:,} bytes")
            hashed = path.read_bytes() if self.of_packed else content
            if (found := hashlib.new(algorithm, hashed).hexdigest()) != published:
                raise DataError(
                    f"not the published file but {len(content):,} bytes with "
                    f"{algorithm} {found} instead of {published}"
                )
        return content


def idx_parts(contents: Sequence[bytes]) -> Parts:
    """Four IDX files: training images and labels, test images and labels."""
    train_images, train_labels, test_images, test_labels = contents
    return *_idx_pair(train_images, train_labels), *_idx_pair(test_images, test_labels)


def cifar_parts(contents: Sequence[bytes]) -> Parts:
    """Files of CIFAR-10's binary version, the last one for testing."""
    *train, test = (np.frombuffer(content, CIFAR_RECORD) for content in contents)
    return *_cifar_pair(np.concatenate(train)), *_cifar_pair(test)


def emnist_selection(contents: Sequence[bytes]) -> Parts:
    """Index lists into ByMerge's test split, followed by a supplement for its rare classes.

    The images stay transposed, as in every official EMNIST file.
    """
    split_images, split_labels, more_images, more_labels, *lists = contents
    split, more = _idx_pair(split_images, split_labels), _idx_pair(more_images, more_labels)
    images = np.concatenate([split[0], more[0]])
    labels = np.concatenate([split[1], more[1]])
    train, test = (np.array(numbers.split(), dtype=np.int64) for numbers in lists)
    return images[train], labels[train], images[test], labels[test]


def _idx_pair(images: bytes, labels: bytes) -> tuple[Images, Labels]:
    """Gray images, as (n, 1, height, width), and their labels."""
    pixels, classes = _idx_array(images), _idx_array(labels)
    if pixels.ndim != 3 or classes.shape != pixels.shape[:1]:
        raise DataError(f"images of shape {pixels.shape} with labels of shape {classes.shape}")
    return pixels[:, np.newaxis], classes.astype(np.int64)


def _idx_array(content: bytes) -> NDArray[np.uint8]:
    """An IDX file: two zeros, element type, number of dimensions, big-endian sizes, elements."""
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", count=dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _cifar_pair(records: NDArray[np.void]) -> tuple[Images, Labels]:
    return np.ascontiguousarray(records["image"]), records["label"].astype(np.int64)
