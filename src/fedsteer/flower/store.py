"""What a Flower run leaves on disk: records and a checkpoint in the formats of the simulator.

The checkpoint is written when a round has been aggregated, its row of rounds.jsonl when it has been
evaluated too. A run that is killed in between finds the row in the checkpoint and evaluates again:
no finished round is lost, and none is recorded twice.
"""

import time
from collections.abc import Iterable, Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

import flwr
from flwr.app import ArrayRecord

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.flower.asking import log
from fedsteer.flower.model import to_named
from fedsteer.options import listed
from fedsteer.records import Checkpoint, RecordWriter, Run
from fedsteer.records.checkpoint import remove_parts
from fedsteer.records.files import filled, look, number, plain, table, utc_now, write_atomically
from fedsteer.records.names import BEST, CHECKPOINT, FAILURE, MODEL, RESULT, remedy
from fedsteer.records.rows import Tracker
from fedsteer.records.writer import Check
from fedsteer.steering.state import Arrays

Row = dict[str, Any]
EVALUATION = ("accuracy", "loss", "average_accuracy", "average_loss", "evaluation")
"""Columns of rounds.jsonl that come from the evaluation."""


class RunStore:
    """Records and checkpoint in a folder. Without a folder only the callbacks are told."""

    def __init__(self, folder: Path | None, callbacks: Iterable[Tracker]) -> None:
        self.folder = folder
        self.callbacks: tuple[Tracker, ...] = listed("callbacks", callbacks, "functions")
        for function in self.callbacks:
            if not callable(function):
                raise ConfigurationError(f"callbacks must be functions, not {function!r}")
        self._blamed: set[int] = set()  # places of callbacks that have raised
        self.pending: Row | None = None  # row of the round that has not been evaluated yet
        self.first_evaluation: Row = {}  # by the server, before the first round
        self.best: tuple[bool, float] | None = None  # merit of the best model so far
        self.records: RecordWriter | None = None
        self._round_began = time.perf_counter()

    def load(
        self, belongs: Check = lambda path, run: None, patience: float = 30.0
    ) -> Checkpoint | None:
        """Read the checkpoint and cut the record files back to it.

        `belongs` refuses that of another run. A ServerApp may outlive its SuperLink for a while, so
        wait for the folder.
        """
        if self.folder is None:
            return None
        records = self.records = self.records or RecordWriter(self.folder, patience)
        try:
            found = records.load(belongs)
        except DataError as error:
            raise DataError(f"{error}; {remedy(self.folder)}") from error
        if found is None:
            if records.flush()["rounds"]:
                raise ConfigurationError(
                    f"{self.folder} holds another run; choose another folder, or set resume=False "
                    "to start over there"
                )
            return None
        if found.warning:
            log(WARNING, "fedsteer: %s", found.warning)
        run, offsets = found.run, dict(found.offsets)
        due = look(run, "pending", "round")
        self.pending = table(run, "pending") if due is not None else None
        self.first_evaluation = table(run, "first_evaluation")
        for name in ("rounds", "timing"):
            # The run ended after the evaluation: keep the row, and its time if that was written.
            row, end = records.row_after(name, offsets[name])
            if due is None or row.get("round") != due:
                break
            self.pending, offsets[name] = None, end
        records.rewind(offsets)
        return found

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Start a new run, and drop the records of an older one in this folder."""
        if self.folder is None:
            return
        self.pending, self.first_evaluation, self.best = None, {}, None
        records = self.records = self.records or RecordWriter(self.folder)
        records.erase()
        remove_parts(self.folder / CHECKPOINT)
        for name in (RESULT, FAILURE, MODEL, BEST):
            (self.folder / name).unlink(missing_ok=True)
        records.manifest(manifest, flwr=flwr.__version__)

    def plan(self, rounds: int) -> None:
        """Note how many rounds are wanted, warm-up included; a resumed run may want more."""
        if self.records is None:
            return
        manifest = Run(self.records.folder).manifest
        if manifest.get("planned_rounds") != rounds:
            self.records.manifest(manifest | {"planned_rounds": rounds})

    def round_begins(self) -> None:
        """Start the clock; close the last round if its loop never evaluated."""
        self.close_round()
        if self.folder is not None:  # a complete run may be extended
            (self.folder / RESULT).unlink(missing_ok=True)
        self._round_began = time.perf_counter()

    def record(self, row: Row, client_rows: Iterable[Row]) -> None:
        """Write the rows of a round's clients; its own row waits for the evaluation."""
        self.pending = plain(row)
        if self.records is not None:
            for client_row in client_rows:
                self.records.append("clients", client_row)

    def save(self, arrays: Arrays, run: Mapping[str, Any]) -> None:
        if self.records is not None:
            evaluations = {"pending": self.pending, "first_evaluation": self.first_evaluation}
            self.records.begin_save(arrays, dict(run) | evaluations)

    def settle(self) -> None:
        """Wait until what `save` was given is on disk, before any of it changes."""
        if self.records is not None:
            self.records.settle()

    def write_model(self, name: str, arrays: ArrayRecord) -> None:
        """Write a model by the names that the user gave its arrays."""
        if self.folder is not None:
            from safetensors.numpy import save

            write_atomically(self.folder / name, save(to_named(arrays)))

    def rows(self) -> list[Row]:
        """The rounds on disk."""
        if self.records is None:
            return []
        self.records.flush()
        return Run(self.records.folder).rows("rounds")

    def keep_best(self, arrays: ArrayRecord) -> None:
        """Write the model if no round on disk has as good an evaluation as this one."""
        merit = merit_of(self.pending or {})
        if merit is None or self.records is None:
            return
        if self.best is None:
            self.best = max(filter(None, map(merit_of, self.rows())), default=None)
        if self.best is None or merit > self.best:
            self.best = merit
            self.write_model(BEST, arrays)

    def left_out(self, count: int) -> None:
        """So many clients reported impossible metrics in an evaluation."""
        if self.pending is not None:
            self.pending["metrics_left_out"] = self.pending.get("metrics_left_out", 0) + count

    def evaluated(self, metrics: Mapping[str, Any], source: str) -> None:
        """Add an evaluation by "clients" or "server" to the row; the server's has priority."""
        numbers = {key: value for key, value in metrics.items() if isinstance(value, (int, float))}
        if self.pending is None or not numbers:
            return
        evaluation = {**self.pending.get("evaluation", {}), source: numbers}
        self.pending["evaluation"] = evaluation
        for by in ("clients", "server"):
            self.pending |= accuracy_and_loss(evaluation.get(by, {}))
        average = accuracy_and_loss(evaluation.get("average", {}))
        self.pending |= {f"average_{name}": value for name, value in average.items()}

    def close_round(self) -> None:
        """The round's row is complete: write it to disk, and tell the callbacks."""
        if (row := self.pending) is None:
            return
        seconds = time.perf_counter() - self._round_began
        timing = {"round": row["round"], "time": utc_now(), "seconds": seconds}
        if self.records is not None:
            self.records.append("rounds", row)
            self.records.append("timing", timing)
            self.records.flush()
        self.pending = None
        self._tell(row | timing)

    def _tell(self, row: Row) -> None:
        """Call each callback with a row of its own; what it raises is logged once."""
        for place, function in enumerate(self.callbacks):
            try:
                function(filled(row))
            except Exception as error:
                if place not in self._blamed:
                    self._blamed.add(place)
                    name = getattr(function, "__qualname__", repr(function))
                    words = "fedsteer: the callback %s raised %r; rounds go on, this is said once"
                    log(WARNING, words, name, error, exc_info=error)

    def finish(self, totals: Mapping[str, Any]) -> None:
        """The run is complete: write result.json, with the last evaluation."""
        self.close_round()
        if self.records is None:
            return
        last: Row = {}
        for row in self.rows():
            last = {key: row[key] for key in EVALUATION if key in row} or last
        seconds = {"seconds": self.records.seconds}
        self.records.finish({"finished": True} | last | dict(totals) | seconds)

    def close(self) -> None:
        """Close the files; `load` opens them again."""
        if self.records is not None:
            self.records.close()
            self.records = None


def merit_of(row: Row) -> tuple[bool, float] | None:
    """How good an evaluation is: an accuracy beats every loss; nan is none."""
    if (accuracy := number(row, "accuracy")) is not None:
        return True, accuracy
    return None if (loss := number(row, "loss")) is None else (False, -loss)


def accuracy_and_loss(metrics: Mapping[str, float]) -> dict[str, float]:
    """Accuracy and loss, whatever exactly they are called (eval_acc, test-accuracy, ...)."""
    found = {}
    for key, part in (("accuracy", "acc"), ("loss", "loss")):
        names = [name for name in metrics if part in name.lower()]
        if names:
            found[key] = float(metrics[key if key in names else names[0]])
    return found
