"""The checkpoint format: a safetensors file with one JSON document in its header.

The file is replaced atomically, so after a kill the last or the previous checkpoint is there,
complete. There is no pickle: a stranger's checkpoint is safe to open.

Large arrays may stand beside it in parts, each written once. A part is the bytes of an array, or of
one row of a table of long rows, in a file named after their digest. The checkpoint names its parts,
so it switches to new ones when it is replaced; parts that it does not name are removed afterwards.
"""

import json
import zlib
from collections.abc import Collection
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.errors import DataError
from fedsteer.records.files import write_atomically
from fedsteer.steering.state import Arrays, Server, State, pack_server, unpack_server

CHECKSUM = "checksum"
PARTS = "parts"
LARGE = 1 << 20
"""Bytes of an array or row that is worth a file."""
ZEROS = "zeros"
"""Instead of a digest: there is no file for nothing."""


def write_checkpoint(
    path: Path, arrays: Arrays, meta: dict[str, Any], *, in_parts: bool = False
) -> None:
    """Write arrays and JSON-able `meta` to one file, atomically.

    With `in_parts`, large arrays go to files of their own, and only if they changed.
    """
    from safetensors.numpy import save

    large = [name for name in arrays if in_parts and arrays[name].nbytes >= LARGE]
    listed = {name: _write_parts(path.with_name(PARTS), arrays[name]) for name in large}
    if in_parts:
        meta = meta | {PARTS: listed}
    whole = {name: np.asarray(arrays[name], order="C") for name in arrays if name not in large}
    header = meta | {CHECKSUM: _checksum(whole, meta)}
    # A single header entry: safetensors does not keep the order of several.
    write_atomically(path, save(whole, {"fedsteer": json.dumps(header)}))
    if in_parts:
        remove_parts(path, keep={part for entry in listed.values() for part in entry["parts"]})


def read_checkpoint(path: Path) -> tuple[Arrays, dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            meta = json.loads((file.metadata() or {})["fedsteer"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError(f"there is no checkpoint {path}") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise DataError(f"{path} is not a checkpoint of fedsteer: {error}") from None
    written = meta.pop(CHECKSUM, None)  # missing in old files
    if written is not None and written != _checksum(arrays, meta):
        raise DataError(f"{path} is damaged: its checksum does not match")
    for name, entry in meta.pop(PARTS, {}).items():
        arrays[name] = _read_parts(path.with_name(PARTS), entry)
    return arrays, meta


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
    return unpack_server(*read_checkpoint(path), like=like)


def _checksum(arrays: Arrays, meta: dict[str, Any]) -> str:
    """Detects damage on disk, not tampering."""
    found = zlib.crc32(json.dumps(meta).encode())
    for name in sorted(arrays):
        array = arrays[name]
        found = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), found)
        found = zlib.crc32(np.ascontiguousarray(array).data, found)
    return f"{found:08x}"


def _write_parts(folder: Path, array: NDArray[Any]) -> dict[str, Any]:
    """Write an array; returns what `_read_parts` needs."""
    long_rows = array.ndim == 2 and len(array) > 1 and array[0].nbytes >= LARGE
    pieces = array if long_rows else [array]
    digests = [_write(folder, np.ascontiguousarray(piece)) for piece in pieces]
    return {"dtype": array.dtype.str, "shape": array.shape, "parts": digests}


def _read_parts(folder: Path, entry: dict[str, Any]) -> NDArray[Any]:
    array = np.zeros(entry["shape"], entry["dtype"])
    pieces = array if len(entry["parts"]) > 1 else [array]
    for piece, digest in zip(pieces, entry["parts"], strict=True):
        if digest != ZEROS:
            piece[...] = np.frombuffer(_read(folder / digest), piece.dtype).reshape(piece.shape)
    return array


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
