"""The checkpoint format: a safetensors file with one JSON document in its header.

The file is replaced atomically, so after a kill the last or the previous checkpoint is there,
complete. There is no pickle: a stranger's checkpoint is safe to open.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedsteer.errors import DataError
from fedsteer.records.files import write_atomically
from fedsteer.records.parts import read_parts, remove_parts, write_parts
from fedsteer.steering.state import Arrays, Server, State, pack_server, unpack_server

CHECKSUM = "checksum"
PARTS = "parts"


def write_checkpoint(
    path: Path, arrays: Arrays, meta: dict[str, Any], *, in_parts: bool = False
) -> None:
    """Write arrays and JSON-able `meta` to one file, atomically.

    With `in_parts`, large arrays go to files of their own, and only if they changed.
    """
    from safetensors.numpy import save

    if in_parts:
        arrays, listed = write_parts(path.with_name(PARTS), arrays)
        meta = meta | {PARTS: listed}
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    header = meta | {CHECKSUM: _checksum(whole, meta)}
    # A single header entry: safetensors does not keep the order of several.
    write_atomically(path, save(whole, {"fedsteer": json.dumps(header)}))
    if in_parts:
        remove_parts(path.with_name(PARTS), listed)


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
    return arrays | read_parts(path.with_name(PARTS), meta.pop(PARTS, {})), meta


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
