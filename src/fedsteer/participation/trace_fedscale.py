"""FedScale's behaviour trace (docs/traces.md), a pickle:

    {device: {"duration", "inactive": [...], "finish_time", "active": [...], "model"}}

`duration` and `model` are not used. A pickle is a program: the unpickler here has no access to any
class or function. Memory addresses are checked first, because a single damaged one would make it
reserve gigabytes.
"""

import io
import pickle
import pickletools
from typing import Any, NoReturn

import numpy as np

from fedsteer.errors import DataError
from fedsteer.participation.trace import LONGEST, SHORTEST, Times
from fedsteer.reading import reading


class _PlainValuesOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise DataError(
            f"refused: the pickle asks for {module}.{name}; only plain values are allowed"
        )


def fedscale_intervals(data: bytes) -> tuple[list[Times], Times]:
    """The intervals of each device, and the length of its record."""
    _refuse_far_addresses(data)
    content = _PlainValuesOnly(io.BytesIO(data)).load()
    if not isinstance(content, dict) or not content:
        raise DataError("must hold a dictionary with one entry per device")
    with reading("device ids", "all numbers or all strings"):
        devices = sorted(content)
    records = [_record(content[device], str(device)) for device in devices]
    return [intervals for intervals, _ in records], np.array([end for _, end in records])


def _refuse_far_addresses(data: bytes) -> None:
    for operation, argument, _ in pickletools.genops(data):
        # A writer counts addresses up, one per operation.
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise DataError("refused: the pickle writes far beyond its own size")


def _record(record: Any, device: str) -> tuple[Times, float]:
    if not isinstance(record, dict) or not {"active", "inactive", "finish_time"} <= record.keys():
        raise DataError(f"device {device}: needs active, inactive and finish_time")
    active, inactive = _times(record["active"], device), _times(record["inactive"], device)
    (finish,) = _times([record["finish_time"]], device)
    if len(active) != len(inactive):
        raise DataError(f"device {device}: {len(active)} times active, {len(inactive)} inactive")
    if finish < SHORTEST:
        raise DataError(f"device {device}: finish_time must be positive")
    intervals = np.column_stack([active, inactive])
    return intervals[active != inactive], float(finish)  # an empty interval is none


def _times(values: Any, device: str) -> Times:
    if not isinstance(values, list | tuple) or not all(
        type(value) in (int, float) and abs(value) <= LONGEST for value in values
    ):
        raise DataError(f"device {device}: times must be numbers up to {LONGEST:g}")
    return np.array(values, dtype=np.float64)
