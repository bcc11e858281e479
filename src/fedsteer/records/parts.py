"""Large arrays of a checkpoint in files of their own, each written once.

A part is the bytes of an array, or of one row of a table of long rows, in a file named after their
digest. What did not change since the last checkpoint, such as most columns of FedSteer, is there
already and is not written again. The checkpoint names its parts, so it switches to new ones when it
is replaced; parts that it does not name are removed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.errors import DataError
from fedsteer.records.files import write_atomically
from fedsteer.steering.state import Arrays

LARGE = 1 << 20
"""Bytes of an array or row that is worth a file."""
ZEROS = "zeros"
"""Instead of a digest: there is no file for nothing."""


def write_parts(folder: Path, arrays: Arrays) -> tuple[Arrays, dict[str, Any]]:
    """Write the large arrays; returns the others, and what `read_parts` needs."""
    small: Arrays = {}
    listed = {}
    for name, array in arrays.items():
        pieces = _pieces(array)
        if pieces is None:
            small[name] = array
        else:
            digests = [_write(folder, np.ascontiguousarray(piece)) for piece in pieces]
            listed[name] = {"dtype": array.dtype.str, "shape": array.shape, "parts": digests}
    return small, listed


def read_parts(folder: Path, listed: dict[str, Any]) -> Arrays:
    """The large arrays of a checkpoint."""
    arrays: Arrays = {}
    for name, entry in listed.items():
        arrays[name] = np.zeros(entry["shape"], entry["dtype"])
        pieces = arrays[name] if len(entry["parts"]) > 1 else [arrays[name]]
        for piece, digest in zip(pieces, entry["parts"], strict=True):
            if digest != ZEROS:
                _read(folder / digest, piece, digest)
    return arrays


def remove_parts(folder: Path, listed: dict[str, Any]) -> None:
    """Remove the parts that are not listed."""
    kept = {digest for entry in listed.values() for digest in entry["parts"]}
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name not in kept:
            file.unlink()


def _pieces(array: NDArray[Any]) -> Iterable[NDArray[Any]] | None:
    """What of an array goes to files; None: it is small."""
    if array.nbytes < LARGE:
        return None
    long_rows = array.ndim == 2 and len(array) > 1 and array[0].nbytes >= LARGE
    return array if long_rows else [array]


def _write(folder: Path, piece: NDArray[Any]) -> str:
    if not piece.any():
        return ZEROS
    digest = _digest(piece)
    if not (folder / digest).exists():
        write_atomically(folder / digest, _bytes(piece))
    return digest


def _read(path: Path, piece: NDArray[Any], digest: str) -> None:
    """Fill an array with a part."""
    content = np.fromfile(path, piece.dtype) if path.exists() else np.zeros(0, piece.dtype)
    if content.size != prod(piece.shape) or _digest(content) != digest:
        problem = "damaged" if path.exists() else "missing"
        raise DataError(f"{path}, a part of a checkpoint, is {problem}")
    piece[...] = content.reshape(piece.shape)


def _digest(piece: NDArray[Any]) -> str:
    return blake2b(_bytes(piece), digest_size=16).hexdigest()


def _bytes(piece: NDArray[Any]) -> memoryview:
    return piece.reshape(-1).view(np.uint8).data
