"""Warm-up, choice of threads, rounds in turns, and intervals of the paired ratios.

A repetition is one block of rounds by everybody, one after the other, so that whatever disturbs the
machine for a while disturbs everybody alike; the order turns by one from repetition to repetition.
Ratios are taken within a repetition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.bench.machine import busy_share
from fedsteer.bench.processes import Worker, WorkerFailed
from fedsteer.bench.sides import SIDES, Side, Variant
from fedsteer.bench.work import make_work, save_work
from fedsteer.bench.workloads import Workload
from fedsteer.report.statistics import t_quantile

OURS, REFERENCE = "fedsteer", "plain"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How many rounds and how often."""

    warm_up: int  # rounds before anything counts: compilation, caches, start of threads
    trials: int  # blocks for the choice of threads
    block: int  # rounds of a repetition
    repeats: int
    lead_in: int = 0  # rounds before each block that do not count: caches are cold after a wait

    def steps(self, sides: Iterable[str], cores: int) -> int:
        """How often `measure` tells where it stands."""
        return 1 + self.repeats + sum(len(SIDES[name].variants(cores)) for name in sides)

    @property
    def rounds(self) -> int:
        """Rounds that everybody has done in the end."""
        return self.warm_up + (self.trials + self.repeats) * (self.lead_in + self.block)


SHORT = {"a": Plan(3, 3, 5, 9, 2), "b": Plan(1, 1, 1, 3, 1), "c": Plan(1, 1, 1, 3, 1)}
FULL = {"a": Plan(5, 8, 10, 25, 2), "b": Plan(1, 2, 1, 9, 1), "c": Plan(1, 2, 1, 9, 1)}
"""For `fedsteer bench`, a minute or so, and for `benchmarks/peers`."""


@dataclass
class Timed:
    """What one simulator did."""

    side: Side
    variant: Variant
    facts: dict[str, Any]
    start_up: float  # seconds until it was ready
    warm_up: float  # seconds of the warm-up rounds
    tried: dict[str, float]  # seconds a round of every variant, the best of its trials
    trials: list[float] = field(default_factory=list)  # seconds a round of this one
    seconds: list[float] = field(default_factory=list)  # a round, one per repetition
    distance: float | None = None  # of the final weights to the plain loop's, relative

    @property
    def median(self) -> float:
        """Seconds a round."""
        return median(self.seconds)


@dataclass(frozen=True)
class Ratio:
    """A geometric mean of paired ratios with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass
class Measured:
    """All of one workload."""

    workload: Workload
    plan: Plan
    timed: list[Timed]
    failures: dict[str, str]
    idle_load: float | None = None  # share of all cores in use while everybody waited
    moved: float | None = None  # how far the weights went in all, in the unit of the distances

    def ratio(self, timed: Timed) -> Ratio | None:
        """Its time over fedsteer's."""
        ours = next((entry for entry in self.timed if entry.side.name == OURS), None)
        if ours is None or timed is ours:
            return None
        return paired_ratio(timed.seconds, ours.seconds)


def paired_ratio(slow: Sequence[float], fast: Sequence[float]) -> Ratio:
    """Student's interval of the mean log ratio; without an interval if there is but one."""
    logs = np.log(np.asarray(slow, float) / np.asarray(fast, float))
    mean, half = float(logs.mean()), math.inf
    if len(logs) > 1:
        half = t_quantile(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def relative_distance(found: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """|found - reference| / |reference|."""
    wanted = reference.astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def measure(
    workload: Workload,
    plan: Plan,
    pythons: Mapping[str, str],
    folder: Path,
    cores: int,
    tell: Tell = lambda words: None,
) -> Measured:
    """Time the sides named in `pythons` (side -> interpreter); one that fails is left out."""
    tell(f"({workload.key}) making the data")
    work = make_work(workload)
    save_work(work, folder)
    workers: list[Worker] = []
    timed: list[Timed] = []
    failures: dict[str, str] = {}
    try:
        for name, python in pythons.items():
            try:
                worker, entry = _fastest(SIDES[name], plan, folder, python, cores, tell)
            except WorkerFailed as error:
                failures[name] = str(error)
                continue
            workers.append(worker)
            timed.append(entry)
        idle_load = busy_share()
        for repeat in range(plan.repeats):
            tell(f"({workload.key}) repetition {repeat + 1} of {plan.repeats}")
            order = [(place + repeat) % len(workers) for place in range(len(workers))]
            gone = []
            for at in order:
                try:
                    if plan.lead_in:
                        workers[at].rounds(plan.lead_in)
                    timed[at].seconds.append(workers[at].rounds(plan.block) / plan.block)
                except WorkerFailed as error:
                    failures[workers[at].side.name] = str(error)
                    gone.append(at)
            for at in sorted(gone, reverse=True):  # ratios are of what ended every repetition
                workers.pop(at).close()
                timed.pop(at)
        found = {worker.side.name: worker.weights() for worker in workers}
    finally:
        for worker in workers:
            worker.close()
    moved = _compare(found, timed, work.initial)
    return Measured(workload, plan, timed, failures, idle_load, moved)


def _fastest(
    side: Side, plan: Plan, folder: Path, python: str, cores: int, tell: Tell
) -> tuple[Worker, Timed]:
    """The fastest variant of a side, warmed up; the others are gone."""
    candidates: list[tuple[Worker, Timed]] = []
    tried: dict[str, float] = {}
    trouble: WorkerFailed | None = None
    try:
        for variant in side.variants(cores):
            tell(f"{side.title}: {variant.label}")
            try:
                worker = Worker(side, variant, folder, python)
            except WorkerFailed as error:
                trouble = error
                continue
            entry = Timed(side, variant, worker.facts, worker.start_up, math.inf, tried)
            candidates.append((worker, entry))
        for trial in range(1 + plan.trials):  # in turns, like what counts; the first warms up
            for worker, entry in list(candidates):
                try:
                    if not trial:
                        entry.warm_up = worker.rounds(plan.warm_up)
                        continue
                    if plan.lead_in:
                        worker.rounds(plan.lead_in)
                    entry.trials.append(worker.rounds(plan.block) / plan.block)
                except WorkerFailed as error:
                    trouble = error
                    candidates.remove((worker, entry))
                    worker.close()
        if not candidates:
            assert trouble is not None
            raise trouble
        tried |= {e.variant.label: min(e.trials, default=e.warm_up) for _, e in candidates}
        best = min(candidates, key=lambda candidate: tried[candidate[1].variant.label])
        candidates.remove(best)
        return best
    finally:
        for worker, _ in candidates:
            worker.close()


def _compare(
    found: Mapping[str, NDArray[np.float32]],
    timed: Sequence[Timed],
    initial: NDArray[np.float32],
) -> float | None:
    """Final weights against the plain loop's, or the first one's where there is none."""
    if not found:
        return None
    reference = found.get(REFERENCE, next(iter(found.values())))
    for entry in timed:
        entry.distance = relative_distance(found[entry.side.name], reference)
    return relative_distance(initial, reference)
