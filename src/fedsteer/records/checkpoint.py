"""The one checkpoint format: a safetensors file whose header carries one JSON document.

Named arrays and JSON are what every state packs to (see `fedsteer.steering.state`). One file,
replaced atomically: after a kill there is always a whole checkpoint, the last or the one before.
No pickle, so a checkpoint from a stranger can be opened.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.errors import DataError
from fedsteer.records.files import write_atomically

CHECKSUM = "checksum"


def write_checkpoint(path: Path, arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> None:
    """Arrays and JSON-able `meta` into one file, atomically."""
    from safetensors.numpy import save

    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # One entry: safetensors writes several in any order, and the same run gives the same bytes.
    header = meta | {CHECKSUM: _checksum(whole, meta)}
    write_atomically(path, save(whole, {"fedsteer": json.dumps(header)}))


def read_checkpoint(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The inverse of `write_checkpoint`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            meta = json.loads((file.metadata() or {})["fedsteer"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError(f"there is no checkpoint {path}") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise DataError(f"{path} is not a checkpoint of fedsteer: {error}") from None
    written = meta.pop(CHECKSUM, None)  # older ones have none
    if written is not None and written != _checksum(arrays, meta):
        raise DataError(f"{path} is damaged: it is not what was written")
    return arrays, meta


def _checksum(arrays: Mapping[str, NDArray[Any]], meta: dict[str, Any]) -> str:
    """Of all that a checkpoint holds: a disk that forgets a bit is noticed, malice is not."""
    found = zlib.crc32(json.dumps(meta).encode())
    for name in sorted(arrays):
        array = arrays[name]
        found = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), found)
        numbers = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        found = zlib.crc32(numbers.data, found)
    return f"{found:08x}"
