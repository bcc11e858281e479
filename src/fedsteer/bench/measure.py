"""The measuring core: warm-up, choice of threads, rounds in turns, intervals of paired ratios.

A repetition is one block of rounds by every side, one after the other, so that a disturbance of
the machine hits all of them; the order rotates by one from repetition to repetition. Ratios are
taken within a repetition.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsteer.bench.machine import busy_share
from fedsteer.bench.workloads import Work, Workload
from fedsteer.errors import first_line
from fedsteer.report.statistics import estimate

OURS, REFERENCE = "fedsteer", "plain"
Weights = NDArray[np.float32]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Variant:
    """One way to use the cores."""

    label: str
    threads: int  # 0: the side chooses
    processes: int = 1


class Contestant(Protocol):
    """A side that is ready to train; it raises RuntimeError if it cannot continue."""

    facts: dict[str, Any]  # "version"; "threads" if the label of the variant does not say it all

    def rounds(self, count: int) -> float:
        """Run the next rounds; return the seconds they took."""

    def weights(self) -> Weights:
        """The model as it is now."""

    def close(self) -> None:
        """Free its resources; may be called twice."""


@dataclass(frozen=True)
class Side:
    """A simulator to measure; `variants` takes the number of cores."""

    name: str
    title: str
    start: Callable[[Work, Variant], Contestant]
    variants: Callable[[int], list[Variant]]


@dataclass(frozen=True)
class Plan:
    """How many rounds to run, and how often."""

    warm_up: int  # rounds before anything counts: compilation, caches, start of threads
    trials: int  # blocks for the choice of threads, at least one
    block: int  # rounds of a repetition
    repeats: int
    lead_in: int = 0  # rounds before each block that do not count: caches are cold after a wait

    @property
    def rounds(self) -> int:
        """Rounds that every side runs in total."""
        return self.warm_up + (self.trials + self.repeats) * (self.lead_in + self.block)

    def steps(self, sides: Sequence[Side], cores: int) -> int:
        """How often `measure` reports progress."""
        return 1 + self.repeats + sum(len(side.variants(cores)) for side in sides)


SHORT = {
    "a": Plan(warm_up=3, trials=3, block=5, repeats=9, lead_in=2),
    "b": Plan(warm_up=1, trials=1, block=1, repeats=3, lead_in=1),
    "c": Plan(warm_up=1, trials=1, block=1, repeats=3, lead_in=1),
}
"""For `fedsteer bench`: a minute or so."""


@dataclass
class Timed:
    """The results of one side with its fastest variant."""

    side: Side
    variant: Variant
    contestant: Contestant
    start_up: float  # seconds until it was ready
    warm_up: float = math.inf  # seconds of the warm-up rounds
    trial: float = math.inf  # seconds a round, the best of the trials
    tried: dict[str, float] = field(default_factory=dict)  # the same of every variant
    seconds: list[float] = field(default_factory=list)  # seconds a round, one per repetition
    distance: float | None = None  # relative, of the final weights to the plain loop's

    @property
    def median(self) -> float:
        """Seconds a round."""
        return median(self.seconds)

    def block(self, plan: Plan) -> float:
        """Run one block of rounds; return the seconds a round."""
        if plan.lead_in:
            self.contestant.rounds(plan.lead_in)
        return self.contestant.rounds(plan.block) / plan.block


@dataclass(frozen=True)
class Ratio:
    """A geometric mean of paired ratios with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass
class Measured:
    """The results of one workload."""

    workload: Workload
    plan: Plan
    timed: list[Timed] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    idle_load: float | None = None  # share of all cores in use while every side waited
    moved: float | None = None  # relative distance from the initial to the final weights

    def ratio(self, timed: Timed) -> Ratio | None:
        ours = next((entry for entry in self.timed if entry.side.name == OURS), None)
        if ours is None or timed is ours:
            return None
        return paired_ratio(timed.seconds, ours.seconds)


def paired_ratio(slow: Sequence[float], fast: Sequence[float]) -> Ratio:
    """The mean log ratio with Student's interval, which is unbounded for a single pair."""
    found = estimate(np.log(np.divide(slow, fast)))
    assert found is not None
    mean, half = found.mean, math.inf if found.half is None else found.half
    return Ratio(mean=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def relative_distance(found: Weights, reference: Weights) -> float:
    """|found - reference| / |reference|."""
    wanted = reference.astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def measure(
    work: Work, plan: Plan, sides: Sequence[Side], cores: int, tell: Tell = lambda words: None
) -> Measured:
    """Time the sides; a side that fails is reported and left out."""
    key = work.workload.key
    found = Measured(workload=work.workload, plan=plan)
    with ExitStack() as stack:
        for side in sides:
            try:
                found.timed.append(_fastest(side, work, plan, cores, tell, stack))
            except RuntimeError as error:
                found.failures[side.name] = f"{side.title} {first_line(error)}"
        tell(f"({key}) looking at the idle machine")
        found.idle_load = busy_share()
        for repeat in range(plan.repeats):
            tell(f"({key}) repetition {repeat + 1} of {plan.repeats}")
            first = repeat % max(1, len(found.timed))
            for entry in found.timed[first:] + found.timed[:first]:
                try:
                    entry.seconds.append(entry.block(plan))
                except RuntimeError as error:
                    found.failures[entry.side.name] = f"{entry.side.title} {first_line(error)}"
                    found.timed.remove(entry)
                    entry.contestant.close()
        weights = {entry.side.name: entry.contestant.weights() for entry in found.timed}
    if weights:
        reference = weights.get(REFERENCE, next(iter(weights.values())))
        found.moved = relative_distance(work.initial, reference)
        for entry in found.timed:
            entry.distance = relative_distance(weights[entry.side.name], reference)
    return found


def _fastest(side: Side, work: Work, plan: Plan, cores: int, tell: Tell, stack: ExitStack) -> Timed:
    """The fastest variant of a side, warmed up; the others are closed."""
    candidates: list[Timed] = []
    trouble = RuntimeError("has no variant to try")
    for variant in side.variants(cores):
        tell(f"{side.title}: {variant.label}")
        began = time.perf_counter()
        try:
            contestant = side.start(work, variant)
        except RuntimeError as error:
            trouble = error
            continue
        spent = time.perf_counter() - began
        stack.callback(contestant.close)
        candidates.append(Timed(side, variant, contestant, start_up=spent))
    for trial in range(1 + plan.trials):  # in turns, like the repetitions; the first warms up
        for entry in list(candidates):
            try:
                if trial:
                    entry.trial = min(entry.trial, entry.block(plan))
                else:
                    entry.warm_up = entry.contestant.rounds(plan.warm_up)
            except RuntimeError as error:
                trouble = error
                candidates.remove(entry)
                entry.contestant.close()
    if not candidates:
        raise trouble
    best = min(candidates, key=lambda entry: entry.trial)
    best.tried = {entry.variant.label: entry.trial for entry in candidates}
    for entry in candidates:
        if entry is not best:
            entry.contestant.close()
    return best
