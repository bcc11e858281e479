"""One run as it goes: what its records say by now, read piece by piece."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.records.files import number
from fedsteer.records.names import MANIFEST, RESULT, stream_file
from fedsteer.records.tail import Tail, signature
from fedsteer.report.curves import thinned
from fedsteer.report.visits import of_clients
from fedsteer.watch.clients import Clients, ClientState
from fedsteer.watch.warnings import Warned, Warnings

RUNNING = ("begun", "warm-up", "training", "quiet")
"""A run that is none of these is "ended", "failed" or "unreadable"."""
RECENT = 20
"""Rounds over which the time of a round is averaged."""
PATIENCE = 3
"""A run is quiet after this many of its longest recent rounds without news."""
LEAST_PATIENCE = 60.0  # seconds
MOST_POINTS = 200
MEASURES = ("accuracy", "loss")


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run in a frame. None: not known, or not yet."""

    name: str  # its folder below the one that is watched
    label: str = ""
    seed: int | None = None
    status: str = "begun"
    reason: str = ""  # why it failed, or cannot be read
    news: float = 0.0  # when it last wrote a round, or began
    round: int = 0  # of training, or of the warm-up while that lasts
    rounds: int | None = None  # wanted
    left: float | None = None  # seconds until the end
    pace: float | None = None  # seconds of a round
    measure: str = "accuracy"
    value: float | None = None  # of the last evaluation
    best: tuple[int, float] | None = None  # round and value
    numbers: Mapping[str, float]  # columns of the last round

    @property
    def running(self) -> bool:
        return self.status in RUNNING

    @property
    def silent(self) -> float:
        """Seconds without news."""
        return max(0.0, time.time() - self.news)


@dataclass(frozen=True)
class Details:
    """What only a run in focus shows."""

    warm_up: int  # rounds before the first that `RunState.round` counts
    curve: list[tuple[int, float]]
    clients: list[ClientState]
    warnings: list[Warned]
    times: Mapping[int, str]  # when the rounds named here ended, where that is known
    damaged: int  # lines that could not be read


@final
class LiveRun:
    """Follows the records in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._begin()

    def _begin(self) -> None:
        self._manifest = signature(self.folder / MANIFEST)
        self._run = Run(self.folder)
        self._rounds, self._timing, self._client_rows = (
            Tail(self.folder / stream_file(name)) for name in ("rounds", "timing", "clients")
        )
        self._last: dict[str, Any] = {}
        self._curves: dict[str, list[tuple[int, float]]] = {name: [] for name in MEASURES}
        self._times: dict[int, str] = {}
        self._seconds = deque[float](maxlen=RECENT)
        self._warnings = Warnings()
        self._clients: Clients | None = None
        self._ended: tuple[Any, RunState] | None = None  # the state of a run that has ended

    def state(self) -> RunState:
        """Where the run is. The rows of a run found ended are not read for this."""
        marks = [signature(self.folder / name) for name in (MANIFEST, RESULT)]
        if self._ended is not None and self._ended[0] == marks:
            return self._ended[1]
        try:
            self._start_over_if_replaced()
            result = self._run.json(RESULT) if self._run.finished else None
            if result is None or self._last:
                self._read_rounds()
            found = self._state(result, self._run.failure)
        except DataError as error:
            return RunState(name=self.name, status="unreadable", reason=str(error), numbers={})
        if result is not None:
            self._ended = marks, found
        return found

    def details(self) -> Details:
        """What its clients do, its curve and its warnings."""
        self._start_over_if_replaced()
        self._ended = None  # its state says more once its rows are read
        self._read_rounds()  # before the clients: a round's row is written after theirs
        if self._clients is None:
            count = number(self._run.manifest, "clients", "count")
            self._clients = Clients(int(count or len(of_clients(self._run.manifest, "sizes"))))
        for row in self._client_rows.rows():
            self._clients.note(row)
            self._warnings.note(row)
        last = int(number(self._last, "round") or 0)
        clients, warnings = self._clients.states(now=last), self._warnings.latest()
        warming = self._last.get("phase") == "warm-up"
        named = {one.since for one in clients} | {one.round for one in warnings}
        tails = (self._rounds, self._timing, self._client_rows)
        return Details(
            warm_up=0 if warming else last - int(self._progress(self._last)[0]),
            curve=thinned(self._curves[self._measure], MOST_POINTS),
            clients=clients,
            warnings=warnings,
            times={moment: self._times[moment] for moment in named & self._times.keys()},
            damaged=sum(tail.damaged for tail in tails),
        )

    def _start_over_if_replaced(self) -> None:
        """A run that is resumed or started again in its folder is read from its beginning."""
        tails = (self._rounds, self._timing, self._client_rows)
        if signature(self.folder / MANIFEST) != self._manifest or any(t.replaced() for t in tails):
            self._begin()

    def _read_rounds(self) -> None:
        for row in self._timing.rows():
            if (seconds := number(row, "seconds")) is not None:
                self._seconds.append(seconds)
            if (moment := number(row, "round")) is not None and isinstance(row.get("time"), str):
                self._times[int(moment)] = row["time"]
        for row in self._rounds.rows():
            self._last = row
            self._warnings.note(row)
            for name, curve in self._curves.items():
                if (value := number(row, name)) is not None:
                    curve.append((int(self._progress(row)[0]), value))

    @property
    def _measure(self) -> str:
        accuracy, loss = MEASURES
        return loss if self._curves[loss] and not self._curves[accuracy] else accuracy

    def _state(self, result: Mapping[str, Any] | None, failure: str | None) -> RunState:
        row, curve, measure = self._last, self._curves[self._measure], self._measure
        better = max if measure == "accuracy" else min
        columns = row or result or {}
        done, wanted = self._progress(row)
        value = curve[-1][1] if curve else None
        if result is not None and not row:  # its rows are not read
            measure = next((name for name in MEASURES if name in result), measure)
            value, done = number(result, measure), number(result, "rounds") or 0.0
        pace = sum(self._seconds) / len(self._seconds) if self._seconds else None
        news = self._last_news()
        doing = self._doing(time.time() - news)
        status = "ended" if result is not None else "failed" if failure else doing
        left = None
        if status == "training" and pace is not None and wanted is not None:
            left = pace * (wanted - done)
        return RunState(
            name=self.name,
            label=self._run.label,
            seed=self._run.seed,
            status=status,
            reason=failure if status == "failed" and failure else "",
            news=news,
            round=int(done),
            rounds=None if wanted is None else int(wanted),
            left=left,
            pace=pace,
            measure=measure,
            value=value,
            best=better(curve, key=lambda point: point[1], default=None),
            numbers={key: found for key in columns if (found := number(columns, key)) is not None},
        )

    def _progress(self, row: Mapping[str, Any]) -> tuple[float, float | None]:
        """Rounds done and wanted; on Flower, those of a warm-up are among both."""
        wanted = number(self._run.manifest, "experiment", "run", "rounds")
        if wanted is None:
            return number(row, "round") or 0.0, number(self._run.manifest, "planned_rounds")
        counted = "round" if row.get("phase") == "warm-up" else "training_round"
        return number(row, counted) or 0.0, wanted

    def _doing(self, silent: float) -> str:
        """What a run does that has neither ended nor failed."""
        if not self._last:
            return "begun"
        if silent > max(PATIENCE * max(self._seconds, default=0.0), LEAST_PATIENCE):
            return "quiet"
        return "warm-up" if self._last.get("phase") == "warm-up" else "training"

    def _last_news(self) -> float:
        """When the run last wrote a round, or began."""
        found = (signature(self.folder / name) for name in (stream_file("rounds"), MANIFEST))
        return max((own[-1] / 1e9 for own in found if own), default=0.0)
