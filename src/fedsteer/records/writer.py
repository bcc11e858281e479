"""A run's folder, open for writing: rows, one checkpoint, manifest and result."""

import json
import os
import platform
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import IO, Any, NamedTuple

import fedsteer
from fedsteer.errors import ConfigurationError, DataError
from fedsteer.records.checkpoint import read_checkpoint, write_checkpoint
from fedsteer.records.files import filled, utc_now, write_json
from fedsteer.records.names import CHECKPOINT, FORMAT, MANIFEST, RESULT, STREAMS, stream_file
from fedsteer.steering.state import Arrays


class Checkpoint(NamedTuple):
    """What `RecordWriter.save` wrote."""

    arrays: Arrays
    run: dict[str, Any]
    offsets: dict[str, int]  # length of each record file


class RecordWriter:
    """Three append-only files, and a checkpoint that knows how long they were.

    To resume, `load` the checkpoint and `rewind` to its offsets: the resumed run then leaves the
    same bytes as one that was never interrupted.
    """

    def __init__(self, folder: Path, patience: float = 0.0) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[bytes]] = {
            name: (folder / stream_file(name)).open("ab") for name in STREAMS
        }
        self._saving = ThreadPoolExecutor(max_workers=1)
        self._saved: Future[None] | None = None
        self._earlier_seconds = 0.0
        self._began = time.perf_counter()
        self._claim(patience)

    def _claim(self, patience: float) -> None:
        """Keep other processes from writing here until the files are closed.

        A process that holds the folder may be about to end because its parent was killed, so wait
        up to `patience` seconds. The system drops the lock when a process ends, even by a kill.
        """
        try:
            import fcntl
        except ModuleNotFoundError:  # pragma: no cover - not a POSIX system
            return
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._files["rounds"], fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() >= deadline:
                    self.close()
                    raise ConfigurationError(
                        f"another process is still writing to {self.folder}; wait until it ends "
                        "or choose another folder"
                    ) from None
                time.sleep(0.2)

    def append(self, stream: str, row: Mapping[str, Any]) -> None:
        """Add a row to `rounds`, `clients` or `timing`; keys without a value are left out."""
        text = json.dumps(filled(row), separators=(",", ":"))
        self._files[stream].write((text + "\n").encode())

    def publish(self) -> None:
        """Let other programs see all rows; a loss of power may still lose them."""
        for file in self._files.values():
            file.flush()

    def flush(self) -> dict[str, int]:
        """Write all rows to disk; returns the length of each file."""
        self.publish()
        for file in self._files.values():
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def rewind(self, offsets: Mapping[str, int]) -> None:
        """Drop all rows written after these offsets."""
        for name, file in self._files.items():
            if file.seek(0, os.SEEK_END) < offsets[name]:
                raise DataError(f"{file.name} is shorter than its checkpoint says")
            file.truncate(offsets[name])
            file.seek(0, os.SEEK_END)

    def erase(self) -> None:
        self.rewind(dict.fromkeys(STREAMS, 0))

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, including attempts before the checkpoint."""
        return self._earlier_seconds + time.perf_counter() - self._began

    def save(self, arrays: Arrays, run: Mapping[str, Any]) -> None:
        """Write the checkpoint: arrays, JSON-able `run`, time spent and where the rows end."""
        write_checkpoint(self.folder / CHECKPOINT, arrays, self._meta(run))

    def begin_save(self, arrays: Arrays, run: Mapping[str, Any]) -> None:
        """The same in the background, in parts; `settle` before any of the arrays changes."""
        self.settle()
        path, meta = self.folder / CHECKPOINT, deepcopy(self._meta(run))
        self._saved = self._saving.submit(write_checkpoint, path, arrays, meta, in_parts=True)

    def settle(self) -> None:
        """Wait until the checkpoint is on disk."""
        saved, self._saved = self._saved, None
        if saved is not None:
            saved.result()

    def _meta(self, run: Mapping[str, Any]) -> dict[str, Any]:
        return {"run": dict(run), "offsets": self.flush(), "seconds": self.seconds}

    def load(self) -> Checkpoint | None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            return None
        arrays, meta = read_checkpoint(path)
        if not {"run", "offsets", "seconds"} <= meta.keys():
            raise DataError(f"{path} is from another version of fedsteer; use that or start over")
        self._earlier_seconds, self._began = meta["seconds"], time.perf_counter()
        return Checkpoint(arrays=arrays, run=meta["run"], offsets=meta["offsets"])

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
        try:
            self.settle()
        finally:
            self._saving.shutdown()
            for file in self._files.values():
                file.close()
