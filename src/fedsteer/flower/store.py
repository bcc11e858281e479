"""What a Flower run leaves on disk: the records of the simulator, and one checkpoint.

The checkpoint is written when a round has been aggregated, its row in rounds.jsonl once it has been
evaluated too. A run killed in between finds the unfinished row in the checkpoint and evaluates
again, so no finished round is ever lost and none is recorded twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flwr

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.records import RecordWriter
from fedsteer.records.files import plain
from fedsteer.records.names import CHECKPOINT, FAILURE, RESULT, stream_file
from fedsteer.steering.state import Arrays

Row = dict[str, Any]
WHOLE = frozenset({"pending", "last", "number", "identities", "setup", "totals"})
"""What a checkpoint tells beside packed states."""


class RunStore:
    """Records and checkpoint in a folder; nothing at all without one."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.pending: Row | None = None  # the round that has not been evaluated yet
        self.last: Row = {}  # the last evaluation
        self._records: RecordWriter | None = None
        self._round_began = time.perf_counter()

    def load(self, patience: float = 30.0) -> tuple[Arrays, dict[str, Any]] | None:
        """The last checkpoint; record files are cut back to where they were then."""
        if self.folder is None:
            return None
        records = self._claimed(self.folder, patience)
        found = records.load()
        if found is None:
            if records.offsets()["rounds"]:
                raise ConfigurationError(
                    f"{self.folder} holds another run; choose another folder, or resume=False to "
                    "begin anew there"
                )
            return None
        arrays, meta, offsets = found
        if not WHOLE.issubset(meta):
            raise DataError(f"{self.folder / CHECKPOINT} is not a checkpoint of a Flower run")
        self.pending, self.last = meta["pending"], meta["last"]
        row, end = self._row_after("rounds", offsets["rounds"])
        if self.pending is not None and row.get("round") == self.pending["round"]:
            # It was evaluated and written before the run ended.
            offsets["rounds"], offsets["timing"] = (
                end,
                self._row_after("timing", offsets["timing"])[1],
            )
            self.last, self.pending = evaluation_of(row), None
        records.rewind(offsets)
        return arrays, meta

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """A new run: nothing of an older one stays in the folder's record files."""
        if self.folder is None:
            return
        records = self._claimed(self.folder, 0.0)
        self.pending, self.last = None, {}
        records.erase()
        for name in (RESULT, FAILURE, CHECKPOINT):
            (self.folder / name).unlink(missing_ok=True)
        records.manifest(manifest, flwr=flwr.__version__)

    def round_begins(self) -> None:
        """For the timing; a row left over from a loop that never evaluates is written."""
        self.close_round()
        self._round_began = time.perf_counter()

    def record(self, row: Row, clients: list[Row]) -> None:
        """A round that has been aggregated: who was fresh, who was dropped, who failed and why."""
        if self._records is not None:
            self.pending = plain(row)
            for entry in clients:
                self._records.append("clients", entry)

    def save(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """A checkpoint of everything, atomically."""
        if self._records is not None:
            whole = dict(meta) | {"pending": self.pending, "last": self.last}
            self._records.save(arrays, whole)

    def evaluated(self, metrics: Mapping[str, Any], source: str) -> None:
        """Metrics of the round's evaluation by "clients" or by the "server", which has priority."""
        numbers = {key: value for key, value in metrics.items() if isinstance(value, (int, float))}
        if self.pending is None or not numbers:
            return
        found = dict(self.pending.get("evaluation", {})) | {source: numbers}
        self.pending["evaluation"] = found
        self.pending |= _headline(found.get("clients", {})) | _headline(found.get("server", {}))

    def close_round(self) -> None:
        """The round's row, safely on disk."""
        if self._records is None or self.pending is None:
            return
        self.last = evaluation_of(self.pending) or self.last
        self._records.append("rounds", self.pending)
        seconds = time.perf_counter() - self._round_began
        self._records.append("timing", {"round": self.pending["round"], "seconds": seconds})
        self._records.offsets()
        self.pending = None

    def reopen(self) -> None:
        """More rounds of a run that had ended."""
        if self.folder is not None:
            (self.folder / RESULT).unlink(missing_ok=True)

    def finish(self, totals: Mapping[str, Any]) -> None:
        """The run is complete."""
        self.close_round()
        if self._records is not None:
            seconds = self._records.seconds
            result = {"finished": True} | self.last | dict(totals) | {"seconds": seconds}
            self._records.finish(result)

    def close(self) -> None:
        """Let go of the files; `load` takes them up again."""
        if self._records is not None:
            self._records.close()
            self._records = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """For writing between two starts, when the files are closed."""
        closed = self._records is None
        try:
            if closed:
                self.load()
            yield
        finally:
            if closed:
                self.close()

    def _row_after(self, stream: str, offset: int) -> tuple[Row, int]:
        """The whole row that begins at this offset, and where it ends; nothing if it is torn."""
        assert self.folder is not None
        path = self.folder / stream_file(stream)
        line, newline, _ = (path.read_bytes() if path.exists() else b"")[offset:].partition(b"\n")
        try:
            return (json.loads(line), offset + len(line) + 1) if newline else ({}, offset)
        except ValueError:
            return {}, offset

    def _claimed(self, folder: Path, patience: float) -> RecordWriter:
        """One writer at a time: a ServerApp may live on for a while after its SuperLink's end."""
        if self._records is None:
            records = RecordWriter(folder)
            try:
                records.claim(patience)
            except ConfigurationError:
                records.close()
                raise
            self._records = records
        return self._records


def evaluation_of(row: Mapping[str, Any]) -> Row:
    """What a row of rounds.jsonl says about accuracy and loss."""
    return {key: row[key] for key in ("accuracy", "loss", "evaluation") if key in row}


def _headline(metrics: Mapping[str, float]) -> dict[str, float]:
    """Accuracy and loss, whatever exactly the user calls them (eval_acc, test-accuracy, ...)."""
    found = {}
    for key, part in (("accuracy", "acc"), ("loss", "loss")):
        names = [name for name in metrics if part in name.lower()]
        if names:
            found[key] = float(metrics[key if key in names else names[0]])
    return found
