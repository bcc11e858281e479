"""The checkpoint format: a safetensors file with one JSON document in its header.

The file is replaced atomically, so after a kill the last or the previous checkpoint is there,
complete. There is no pickle: a stranger's checkpoint is safe to open.

Large arrays may stand beside it in parts, each written once. A part is the bytes of an array, or of
one row of a table of long rows, in a file named after their digest. The checkpoint names its parts,
so it switches to new ones when it is replaced. `generations` removes parts that nothing names.
"""

import errno
import json
import os
import zlib
from collections.abc import Collection
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsteer.errors import DataError
from fedsteer.reading import reading
from fedsteer.records.files import naming, write_atomically
from fedsteer.steering.state import Arrays, Server, State, pack_server, unpack_server

CHECKSUM = "checksum"
PARTS = "parts"
LARGE = 1 << 20
"""Bytes of an array or row that is worth a file."""
ZEROS = "zeros"
"""Instead of a digest: there is no file for nothing."""


class Pieces(NamedTuple):
    """A checkpoint, and what of it is lost with damaged or missing parts."""

    arrays: Arrays  # zero where they are lost
    meta: dict[str, Any]
    parts: set[str]  # that are whole
    lost: dict[str, list[int]]  # array -> its rows; of an array without rows [0]
    problem: str  # what is wrong with the first such part; empty: nothing


def write_checkpoint(
    path: Path,
    arrays: Arrays,
    meta: dict[str, Any],
    *,
    in_parts: bool = False,
    before: Path | None = None,
) -> set[str]:
    """Write arrays and JSON-able `meta` to one file, atomically; returns the parts that it names.

    With `in_parts`, large arrays go to files of their own, and only if they changed. The checkpoint
    that was there stays as `before`.
    """
    from safetensors.numpy import save

    large = [name for name in arrays if in_parts and arrays[name].nbytes >= LARGE]
    listed = {name: _write_parts(path.with_name(PARTS), arrays[name]) for name in large}
    if in_parts:
        meta = meta | {PARTS: listed}
    whole = {name: np.asarray(arrays[name], order="C") for name in arrays if name not in large}
    header = meta | {CHECKSUM: _checksum(whole, meta)}
    # A single header entry: safetensors does not keep the order of several.
    write_atomically(path, save(whole, {"fedsteer": json.dumps(header)}), before=before)
    return {part for entry in listed.values() for part in entry["parts"]} - {ZEROS}


def read_checkpoint(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and meta of a checkpoint that is whole."""
    found = read_pieces(path)
    if found.lost:
        raise DataError(found.problem)
    return found.arrays, found.meta


def read_pieces(path: Path) -> Pieces:
    """What can be read of a checkpoint. Only parts may be lost."""
    from safetensors import safe_open

    if not path.exists():
        raise DataError(f"there is no checkpoint {path}")
    if not os.access(path, os.R_OK):  # it may be whole; safetensors would say that it is not there
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    listed: dict[str, list[tuple[NDArray[Any], str]]] = {}
    with reading(path, "a checkpoint of fedsteer"):
        with safe_open(path, "np") as file:
            meta = dict(json.loads((file.metadata() or {})["fedsteer"]))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        written = meta.pop(CHECKSUM, None)
        if written is None:
            raise DataError(
                f"{path} has no checksum: it is damaged, or of an old version of fedsteer"
            )
        if written != _checksum(arrays, meta):
            raise DataError(f"{path} is damaged: its checksum does not match")
        for name, entry in meta.pop(PARTS, {}).items():
            array = arrays[name] = np.zeros(entry["shape"], entry["dtype"])
            pieces = array if len(entry["parts"]) > 1 else [array]
            listed[name] = list(zip(pieces, entry["parts"], strict=True))
            for digest in entry["parts"]:
                bytes.fromhex(digest if digest != ZEROS else "")  # no path to another folder
    parts, lost, problem = set[str](), dict[str, list[int]](), ""
    for name, found in listed.items():  # not while reading: what the disk refuses may be whole
        for row, (piece, digest) in enumerate(found):
            try:
                _read(path.with_name(PARTS) / digest, piece)
            except DataError as error:
                problem = problem or str(error)
                whole = range(len(piece) if piece.ndim > 1 else 1)
                lost[name] = [*lost.get(name, ()), *([row] if len(found) > 1 else whole)]
            else:
                parts.add(digest)
    return Pieces(arrays=arrays, meta=meta, parts=parts, lost=lost, problem=problem)


def remove_parts(path: Path, keep: Collection[str] = ()) -> None:
    """Remove the parts of the checkpoint at `path`, but those it is to `keep`."""
    folder = path.with_name(PARTS)
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name not in keep:
            file.unlink()


def save_server(path: Path, *, state: State, moments: State, model: Any) -> None:
    """Write a rule's state, the optimiser's and the model to one file, atomically."""
    write_checkpoint(path, *pack_server(state, moments, model))


def load_server(path: Path, like: Any = None) -> Server:
    """Read state, moments and model; torch tensors go to the device of `like`."""
    arrays, meta = read_checkpoint(path)
    with reading(path, "the checkpoint of a server"):
        return unpack_server(arrays, meta, like=like)


def _checksum(arrays: Arrays, meta: dict[str, Any]) -> str:
    """Detects damage on disk, not tampering."""
    found = zlib.crc32(json.dumps(meta).encode())
    for name in sorted(arrays):
        array = arrays[name]
        found = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), found)
        found = zlib.crc32(np.ascontiguousarray(array).data, found)
    return f"{found:08x}"


def _write_parts(folder: Path, array: NDArray[Any]) -> dict[str, Any]:
    """Write an array; returns what `read_pieces` needs."""
    long_rows = array.ndim == 2 and len(array) > 1 and array[0].nbytes >= LARGE
    pieces = array if long_rows else [array]
    digests = [_write(folder, np.ascontiguousarray(piece)) for piece in pieces]
    return {"dtype": array.dtype.str, "shape": array.shape, "parts": digests}


def _write(folder: Path, piece: NDArray[Any]) -> str:
    if not piece.any():
        return ZEROS
    content = piece.reshape(-1).view(np.uint8).data
    digest = _digest(content)
    if not (folder / digest).exists():
        write_atomically(folder / digest, content)
    return digest


def _read(path: Path, piece: NDArray[Any]) -> None:
    """Read a part into the zeros of `piece`."""
    if path.name == ZEROS:
        return
    try:
        with naming(path):
            content = path.read_bytes()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise
        problem = "missing" if error.errno == errno.ENOENT else "damaged"
    else:
        if _digest(content) == path.name:
            with reading(path, "a part of this checkpoint"):
                piece[...] = np.frombuffer(content, piece.dtype).reshape(piece.shape)
            return
        problem = "damaged"
    raise DataError(f"{path}, a part of a checkpoint, is {problem}")


def _digest(content: bytes | memoryview) -> str:
    return blake2b(content, digest_size=16).hexdigest()
