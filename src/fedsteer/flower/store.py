"""What a Flower run leaves on disk: records and a checkpoint in the formats of the simulator.

The checkpoint is written when a round has been aggregated, its row of rounds.jsonl when it has been
evaluated too. A run that is killed in between finds the row in the checkpoint and evaluates again:
no finished round is lost, and none is recorded twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import flwr

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.flower.metrics import accuracy_and_loss
from fedsteer.flower.options import SAMPLING, StrategyOptions
from fedsteer.records import RecordWriter, Run
from fedsteer.records.files import plain
from fedsteer.records.names import CHECKPOINT, FAILURE, RESULT, label_of, stream_file
from fedsteer.rules import Rule
from fedsteer.steering.state import Arrays

Row = dict[str, Any]
TOO_LONG = {"arrays": "other arrays", "population": "another population"}
"""Settings whose values are too long for an error message, in words."""
EVALUATION = ("accuracy", "loss", "evaluation")
"""Columns of rounds.jsonl that come from the evaluation."""


class RunStore:
    """Records and checkpoint in a folder. Without a folder nothing is written."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.pending: Row | None = None  # row of the round that has not been evaluated yet
        self.records: RecordWriter | None = None
        self._round_began = time.perf_counter()

    def load(self, patience: float = 30.0) -> tuple[Arrays, Row] | None:
        """Read the checkpoint and cut the record files back to it."""
        if self.folder is None:
            return None
        records = self._open(self.folder, patience)
        found = records.load()
        if found is None:
            if records.offsets()["rounds"]:
                raise ConfigurationError(
                    f"{self.folder} holds another run; choose another folder, or set resume=False "
                    "to start over there"
                )
            return None
        arrays, run, offsets = found
        if "identities" not in run:
            raise DataError(f"{self.folder / CHECKPOINT} is not a checkpoint of a Flower run")
        self.pending = run["pending"]
        rows = Run(self.folder).rows("rounds")
        if rows and self.pending is not None and rows[-1]["round"] == self.pending["round"]:
            # The run ended after the evaluation: keep the row, and its time if that was written.
            self.pending = None
            offsets |= {name: self._complete_rows(name) for name in ("rounds", "timing")}
        records.rewind(offsets)
        return arrays, run

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Start a new run, and drop the records of an older one in this folder."""
        if self.folder is None:
            return
        self.pending = None
        records = self._open(self.folder, patience=0.0)
        records.erase()
        for name in (RESULT, FAILURE, CHECKPOINT):
            (self.folder / name).unlink(missing_ok=True)
        records.manifest(manifest, flwr=flwr.__version__)

    def round_begins(self) -> None:
        """Start the clock; close the last round if its loop never evaluated."""
        self.close_round()
        self._round_began = time.perf_counter()

    def record(self, row: Row, client_rows: Iterable[Row]) -> None:
        """Write the rows of a round's clients; its own row waits for the evaluation."""
        if self.records is not None:
            self.pending = plain(row)
            for client_row in client_rows:
                self.records.append("clients", client_row)

    def save(self, arrays: Arrays, run: Mapping[str, Any]) -> None:
        """Write a checkpoint of everything, atomically."""
        if self.records is not None:
            self.records.save(arrays, dict(run) | {"pending": self.pending})

    def evaluated(self, metrics: Mapping[str, Any], source: str) -> None:
        """Add an evaluation by "clients" or "server" to the row; the server's has priority."""
        numbers = {key: value for key, value in metrics.items() if isinstance(value, (int, float))}
        if self.pending is None or not numbers:
            return
        evaluation = {**self.pending.get("evaluation", {}), source: numbers}
        self.pending["evaluation"] = evaluation
        for by in ("clients", "server"):
            self.pending |= accuracy_and_loss(evaluation.get(by, {}))

    def close_round(self) -> None:
        """Write the round's row to disk."""
        if self.records is None or self.pending is None:
            return
        self.records.append("rounds", self.pending)
        seconds = time.perf_counter() - self._round_began
        self.records.append("timing", {"round": self.pending["round"], "seconds": seconds})
        self.records.offsets()
        self.pending = None

    def reopen(self) -> None:
        """More rounds of a run that was complete."""
        if self.folder is not None:
            (self.folder / RESULT).unlink(missing_ok=True)

    def finish(self, totals: Mapping[str, Any]) -> None:
        """The run is complete: write result.json, with the last evaluation."""
        self.close_round()
        if self.records is None:
            return
        rows = Run(self.records.folder).rows("rounds")
        evaluations = [{key: row[key] for key in EVALUATION if key in row} for row in rows]
        last: Row = next(filter(None, reversed(evaluations)), {})
        seconds = {"seconds": self.records.seconds}
        self.records.finish({"finished": True} | last | dict(totals) | seconds)

    def close(self) -> None:
        """Close the files; `load` opens them again."""
        if self.records is not None:
            self.records.close()
            self.records = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the files open, also between two starts."""
        closed = self.records is None
        try:
            if closed:
                self.load()
            yield
        finally:
            if closed:
                self.close()

    def _complete_rows(self, stream: str) -> int:
        """Length of a record file without a row that was cut short."""
        assert self.folder is not None
        return (self.folder / stream_file(stream)).read_bytes().rfind(b"\n") + 1

    def _open(self, folder: Path, patience: float) -> RecordWriter:
        """Open the folder. A ServerApp may outlive its SuperLink for a while, so wait for it."""
        self.records = self.records or RecordWriter(folder, patience)
        return self.records


def rule_options(rule: Rule, sampling: bool) -> dict[str, Any]:
    """The rule's options as the user gave them; for "sampling" the rule itself gets "known"."""
    return asdict(rule.options) | ({"probabilities": SAMPLING} if sampling else {})


def manifest(
    rule: Rule, preset: str, options: StrategyOptions, sampling: bool, dim: int
) -> dict[str, Any]:
    """The content of manifest.json."""
    return {
        "rule": {
            "label": label_of(f"{rule.name}:{preset}"),
            "name": rule.name,
            "preset": preset,
            "options": rule_options(rule, sampling),
        },
        "seed": rule.options.seed,
        "experiment": {
            "name": options.experiment,
            "title": "A Flower run",
            "server": {"rate": options.server_rate, "method": options.server_optimiser},
            "participation": {
                "fraction_train": options.fraction_train,
                "authenticated": options.authenticated,
            },
        },
        "engine": {"name": "flower"},
        "dim": dim,
    }


def describe_setup(
    rule: Rule, options: StrategyOptions, sampling: bool, arrays: list[list[Any]]
) -> dict[str, Any]:
    """The settings that cannot change between two starts of a run."""
    setup: dict[str, Any] = plain(
        {
            "rule": rule.name,
            "server_optimiser": "sgd" if rule.own_rate else options.server_optimiser,
            "authenticated": options.authenticated,
            "population": options.population,
            "arrays": arrays,
            **rule_options(rule, sampling),
        }
    )
    return setup


def refuse_other_setup(before: Mapping[str, Any], now: Mapping[str, Any], folder: Any) -> None:
    """Raise if a checkpoint belongs to another rule, model or options.

    An option that the checkpoint does not have is newer and had its default.
    """
    for key in now:
        if key in before and before[key] != now[key]:
            difference = TOO_LONG.get(key, f"{key} = {before[key]}, not {now[key]}")
            raise ConfigurationError(
                f"{folder} holds a checkpoint with {difference}; choose another folder, or set "
                "resume=False to start over there"
            )
