"""Large arrays of a checkpoint in files of their own, each written once.

A part is the bytes of an array, or of one row of a table of long rows, in a file named after their
digest. The checkpoint names its parts, so it switches to new ones when it is replaced; parts that
it does not name are removed afterwards.
"""

from __future__ import annotations

from hashlib import blake2b
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
        if array.nbytes < LARGE:
            small[name] = array
            continue
        long_rows = array.ndim == 2 and len(array) > 1 and array[0].nbytes >= LARGE
        pieces = array if long_rows else [array]
        digests = [_write(folder, np.ascontiguousarray(piece)) for piece in pieces]
        listed[name] = {"dtype": array.dtype.str, "shape": array.shape, "parts": digests}
    return small, listed


def read_parts(folder: Path, listed: dict[str, Any]) -> Arrays:
    arrays: Arrays = {}
    for name, entry in listed.items():
        arrays[name] = array = np.zeros(entry["shape"], entry["dtype"])
        pieces = array if len(entry["parts"]) > 1 else [array]
        for piece, digest in zip(pieces, entry["parts"], strict=True):
            if digest != ZEROS:
                piece[...] = np.frombuffer(_read(folder / digest), piece.dtype).reshape(piece.shape)
    return arrays


def remove_parts(folder: Path, listed: dict[str, Any]) -> None:
    kept = {digest for entry in listed.values() for digest in entry["parts"]}
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name not in kept:
            file.unlink()


def _write(folder: Path, piece: NDArray[Any]) -> str:
    if not piece.any():
        return ZEROS
    content = piece.reshape(-1).view(np.uint8).data
    digest = _digest(content)
    if not (folder / digest).exists():
        write_atomically(folder / digest, content)
    return digest


def _read(path: Path) -> bytes:
    content = path.read_bytes() if path.exists() else b""
    if _digest(content) != path.name:
        problem = "damaged" if path.exists() else "missing"
        raise DataError(f"{path}, a part of a checkpoint, is {problem}")
    return content


def _digest(content: bytes | memoryview) -> str:
    return blake2b(content, digest_size=16).hexdigest()
