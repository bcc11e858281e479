"""Reading availability traces: five formats (docs/traces.md), one `Trace`.

Files are not trusted: every problem with one raises a `DataError` that names it.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.options import option
from fedsteer.participation.base import ParticipationOptions
from fedsteer.participation.trace import Intervals, Times, Trace
from fedsteer.participation.trace_fedscale import fedscale_intervals
from fedsteer.participation.trace_flash import flash_intervals
from fedsteer.reading import reading

MOST_CLIENTS = 1_000_000  # one mistyped client number must not fill the memory


@dataclass(frozen=True)
class TraceOptions(ParticipationOptions):
    """Recorded availability, from a file."""

    kind = "trace"
    trace: str | None = option(None, "a file, see docs/traces.md", path=True)
    round_seconds: float = option(600.0, "length of a round", above=0)

    def process(self, clients: int, seed: int) -> Trace:
        """The trace; if it has more devices than there are clients, a sample of them."""
        if self.trace is None:
            raise ConfigurationError("participation.trace must name a file")
        path = self.files()["trace"]
        changed = os.stat(path).st_mtime_ns if os.path.exists(path) else 0
        trace = _read_once(path, self.round_seconds, changed)
        return trace if trace.clients == clients else trace.sample(clients, seed)

    def files(self) -> dict[str, str]:
        """The trace: here, or in $FEDSTEER_DATA or its folder `traces`."""
        if self.trace is None:
            return {}
        places = [Path(self.trace)]
        if root := os.environ.get("FEDSTEER_DATA"):
            places += [Path(root, self.trace), Path(root, "traces", self.trace)]
        return {"trace": str(next((place for place in places if place.exists()), self.trace))}


def read_trace(
    path: str | os.PathLike[str],
    *,
    round_seconds: float,
    length: float | None = None,
    stay_seconds: float = 0.0,
) -> Trace:
    """The trace in a file; `length` (seconds) overrides the time after which records repeat."""
    with reading(path, "a trace"):
        intervals, lengths = _parse(Path(path))
        return Trace(intervals, round_seconds, lengths if length is None else length, stay_seconds)


@lru_cache(maxsize=2)
def _read_once(path: str, round_seconds: float, changed: int) -> Trace:
    """All runs of a comparison share one copy, until the file changes."""
    return read_trace(path, round_seconds=round_seconds)


def _parse(path: Path) -> tuple[Sequence[Intervals], float | Times | None]:
    if path.suffix in (".pkl", ".pickle"):
        return fedscale_intervals(path.read_bytes())
    if path.suffix == ".csv":
        return _csv_intervals(_text(path)), None
    if path.suffix == ".avt":
        return _avt_intervals(_text(path)), None
    if path.suffix == ".json":
        content = json.loads(_text(path), object_pairs_hook=_each_once)
        if not isinstance(content, dict) or not content:
            raise DataError("must hold an object with one entry per client")
        if all(isinstance(record, dict) for record in content.values()):
            return flash_intervals(content)
        return _json_intervals(content), None
    raise DataError("a trace file ends in .csv, .json, .avt, .pkl or .pickle")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two equal names, Python alone would silently keep the second."""
    table = {}
    for name, value in pairs:
        if name in table:
            raise DataError(f"{name!r} comes twice")
        table[name] = value
    return table


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig")


def _csv_intervals(text: str) -> list[Intervals]:
    header, *rows = list(csv.reader(io.StringIO(text), strict=True)) or [[]]
    if [column.strip() for column in header] != ["client", "start", "end"]:
        raise DataError("the first line must be client,start,end")
    found: dict[int, list[tuple[float, float]]] = {}
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        with reading(f"line {line}", "a client number and two times"):
            name, start, end = row
            found.setdefault(_client(name), []).append((float(start), float(end)))
    return _numbered(found)


def _avt_intervals(text: str) -> list[Intervals]:
    found: list[Intervals] = []
    for line, row in enumerate(text.splitlines(), start=1):
        if not row.strip():
            continue
        with reading(f"line {line}", "a node, its number of sessions, and start and end of each"):
            _, count, *times = row.split()
            found.append(np.array(times, np.float64).reshape(-1, 2))
            if len(found[-1]) != int(count):
                raise DataError(f"has {len(found[-1])} sessions instead of {count}")
    return found


def _json_intervals(content: dict[str, Any]) -> list[Intervals]:
    found: dict[int, list[tuple[float, float]]] = {}
    for name, intervals in content.items():
        with reading(f"client {name!r}", "a number with [start, end] pairs"):
            pairs = [_pair(interval) for interval in intervals]
            found.setdefault(_client(name), []).extend(pairs)
    return _numbered(found)


def _pair(interval: Any) -> tuple[float, float]:
    start, end = interval
    # float() would also accept strings and booleans.
    if not all(type(time) in (int, float) for time in (start, end)):
        raise ValueError("a time is a number")
    return float(start), float(end)


def _client(name: str) -> int:
    number = int(name)
    if not 0 <= number < MOST_CLIENTS:
        raise DataError(f"client {number}: numbers must be in 0..{MOST_CLIENTS - 1}")
    return number


def _numbered(found: dict[int, list[tuple[float, float]]]) -> list[Intervals]:
    return [found.get(client, []) for client in range(max(found, default=-1) + 1)]
