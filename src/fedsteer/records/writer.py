"""A run's folder, open for writing: rows, two checkpoints, manifest and result."""

import json
import os
import platform
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from copy import deepcopy
from pathlib import Path
from typing import IO, Any, NamedTuple

import fedsteer
from fedsteer.errors import DataError, StateError
from fedsteer.reading import reading
from fedsteer.records.files import (
    filled,
    fsync_folder,
    make_folder,
    naming,
    number,
    utc_now,
    write_json,
)
from fedsteer.records.generations import Generations
from fedsteer.records.lock import claim
from fedsteer.records.names import FORMAT, MANIFEST, RESULT, STREAMS, stream_file
from fedsteer.steering.state import Arrays

CHUNK = 1 << 20
NUMBERS = ("rounds", "clients")
"""Files that are the same whenever a run is repeated; times are not."""
META = {"run", "offsets", "sums", "seconds"}
"""What a checkpoint of this version says besides its arrays."""
Check = Callable[[Path, dict[str, Any]], None]
"""Refuses the checkpoint at this path if its `run` is another one."""


class Checkpoint(NamedTuple):
    """What `RecordWriter.save` wrote."""

    arrays: Arrays
    run: dict[str, Any]
    offsets: dict[str, int]  # length of each record file
    lost: dict[str, list[int]]  # rows of arrays that are damaged on disk, and zero here
    warning: str  # what is damaged, and what that costs; empty: nothing


class RecordWriter:
    """Three append-only files, and checkpoints that know how long they were and what was in them.

    To resume, `load` the checkpoint and `rewind` to its offsets: the resumed run then leaves the
    same bytes as one that was never interrupted.
    """

    def __init__(self, folder: Path, patience: float = 0.0) -> None:
        self.folder = folder
        make_folder(folder)
        self._files: dict[str, IO[bytes]] = {
            name: (folder / stream_file(name)).open("ab") for name in STREAMS
        }
        self._sums = dict.fromkeys(STREAMS, 0)  # checksum of each file
        self._generations = Generations(folder)
        self._saving = ThreadPoolExecutor(max_workers=1)
        self._saved: Future[None] | None = None
        self._let_go: Callable[[], None] = lambda: None
        self._earlier_seconds = 0.0
        self._began = time.perf_counter()
        with ExitStack() as unless_opened:
            unless_opened.callback(self.close)
            fsync_folder(folder)
            self._claim(patience)
            unless_opened.pop_all()

    def _claim(self, patience: float) -> None:
        """Keep other processes from writing here until the files are closed."""
        self._let_go = claim(self._files["rounds"], self.folder, patience)

    def append(self, stream: str, row: Mapping[str, Any]) -> None:
        """Add a row to `rounds`, `clients` or `timing`; keys without a value are left out."""
        line = (json.dumps(filled(row), separators=(",", ":")) + "\n").encode()
        with naming(self._path(stream)):
            self._files[stream].write(line)
        self._sums[stream] = zlib.crc32(line, self._sums[stream])

    def publish(self) -> None:
        """Let other programs see all rows; a loss of power may still lose them."""
        for name, file in self._files.items():
            with naming(self._path(name)):
                file.flush()

    def flush(self) -> dict[str, int]:
        """Write all rows to disk; returns the length of each file."""
        self.publish()
        for name, file in self._files.items():
            with naming(self._path(name)):
                os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def rewind(self, offsets: Mapping[str, int]) -> None:
        """Drop all rows written after these offsets."""
        sums = {name: self._sum(name, offsets[name]) for name in STREAMS}
        for name, file in self._files.items():
            with naming(self._path(name)):
                file.truncate(offsets[name])
                file.seek(0, os.SEEK_END)
        self._sums = sums

    def erase(self) -> None:
        """Start over: without checkpoints and rows."""
        self.forget()
        self.rewind(dict.fromkeys(STREAMS, 0))

    def forget(self) -> None:
        """Remove the checkpoints."""
        self._generations.forget()

    def row_after(self, stream: str, offset: int) -> tuple[dict[str, Any], int]:
        """The first row after this offset, and where it ends; an empty one if none is whole."""
        with naming(self._path(stream)), self._path(stream).open("rb") as file:
            file.seek(offset)
            line = file.readline()
        row = _row(line) if line.endswith(b"\n") else {}
        return row, offset + (len(line) if row else 0)

    def _path(self, stream: str) -> Path:
        return self.folder / stream_file(stream)

    def _sum(self, stream: str, length: int) -> int:
        """The checksum of the first `length` bytes."""
        path, found = self._path(stream), 0
        with naming(path), path.open("rb") as file:
            while length:
                content = file.read(max(0, min(CHUNK, length)))
                if not content:
                    raise DataError(f"{path} is shorter than its checkpoint says")
                found, length = zlib.crc32(content, found), length - len(content)
        return found

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, including attempts before the checkpoint."""
        return self._earlier_seconds + time.perf_counter() - self._began

    def save(self, arrays: Arrays, run: Mapping[str, Any]) -> None:
        """Write a checkpoint: arrays, JSON-able `run`, time spent and where the rows end."""
        self._generations.write(arrays, self._meta(run))

    def begin_save(self, arrays: Arrays, run: Mapping[str, Any]) -> None:
        """The same in the background, in parts; `settle` before any of the arrays changes."""
        self.settle()
        meta = deepcopy(self._meta(run))
        self._saved = self._saving.submit(self._generations.write, arrays, meta, in_parts=True)

    def settle(self) -> None:
        """Wait until the checkpoint is on disk."""
        saved, self._saved = self._saved, None
        if saved is not None:
            saved.result()

    def _meta(self, run: Mapping[str, Any]) -> dict[str, Any]:
        place = {"offsets": self.flush(), "sums": self._sums}
        return {"run": dict(run), "seconds": self.seconds, **place}

    def load(self, belongs: Check = lambda path, run: None) -> Checkpoint | None:
        """The last checkpoint or, if it is damaged, the one before it; None: there is none."""

        def check(path: Path, meta: dict[str, Any]) -> None:
            if not meta.keys() >= META:
                raise StateError(
                    f"{path} is from another version of fedsteer; use that or start over"
                )
            belongs(path, meta["run"])
            with reading(path, "a checkpoint of a run"):
                meta["seconds"] = float(meta["seconds"])
                meta["offsets"] = {name: int(meta["offsets"][name]) for name in STREAMS}
                sums = {name: meta["sums"][name] for name in NUMBERS}
            for name, length in meta["offsets"].items():
                found = self._sum(name, length)
                if found != sums.get(name, found):
                    raise DataError(
                        f"{self._path(name)} is damaged: its rows are not those that {path.name} "
                        "was written after"
                    )

        found = self._generations.read(check)
        if found is None:
            return None
        meta, warning = found.pieces.meta, found.problem
        if found.older:
            done = number(meta, "run", "number") or 0.0
            count = max(0, int(self._last_round(meta["offsets"]) - done))
            rounds = "1 round is" if count == 1 else f"{count} rounds are"
            warning += f"; the checkpoint before it is used, and {rounds} repeated"
        self._earlier_seconds, self._began = meta["seconds"], time.perf_counter()
        return Checkpoint(
            arrays=found.pieces.arrays,
            run=meta["run"],
            offsets=meta["offsets"],
            lost=found.pieces.lost,
            warning=warning,
        )

    def _last_round(self, offsets: Mapping[str, int]) -> int:
        """The last round that rows after these offsets are about; 0: there are none."""
        last = 0.0
        for name in NUMBERS:
            with naming(self._path(name)), self._path(name).open("rb") as file:
                file.seek(offsets[name])
                for line in file:
                    last = max(last, number(_row(line), "round") or 0.0)
        return int(last)

    def manifest(self, value: Mapping[str, Any], **environment: Any) -> None:
        """Write what is run, by which version, when and where; `environment` adds to the latter.

        Keys that `value` already has are kept.
        """
        here = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        }
        whole = {"format": FORMAT, "version": fedsteer.__version__, **value}
        whole.setdefault("environment", here | environment)
        whole.setdefault("created", utc_now())
        write_json(self.folder / MANIFEST, whole)

    def finish(self, result: Mapping[str, Any]) -> None:
        self.flush()
        write_json(self.folder / RESULT, result)

    def close(self) -> None:
        with ExitStack() as every:  # whatever one of them raises
            every.callback(self._let_go)
            for name, file in self._files.items():
                every.callback(_close, file, self._path(name))
            every.callback(self._saving.shutdown)
            self.settle()


def _close(file: IO[bytes], path: Path) -> None:
    with naming(path):
        file.close()


def _row(line: bytes) -> dict[str, Any]:
    """The row of this line; an empty one if it is none."""
    with suppress(ValueError, RecursionError):
        row = json.loads(line)
        if isinstance(row, dict):
            return row
    return {}
