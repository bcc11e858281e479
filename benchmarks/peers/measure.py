"""The measuring core: warm-up, choice of threads, rounds in turns, intervals of paired ratios.

A repetition is one block of rounds by every side, one after the other, so that a disturbance of
the machine hits all of them; the order rotates by one from repetition to repetition. Ratios are
taken within a repetition.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Protocol

from fedsteer.bench.measure import OURS, REFERENCE, Plan, paired_ratio, relative_distance
from fedsteer.bench.sides import Weights
from fedsteer.bench.workloads import Work
from fedsteer.errors import first_line

Failures = dict[str, str]  # side -> what happened, in words
Tell = Callable[[str], None]


class Contestant(Protocol):
    """A side that is ready to train; it raises RuntimeError if it cannot continue."""

    facts: dict[str, Any]  # "version"; "threads" if the label of its way does not say it all

    def rounds(self, count: int) -> float:
        """Run the next rounds; return the seconds they took."""

    def weights(self) -> Weights:
        """The model as it is now."""

    def close(self) -> None:
        """Free its resources; may be called twice."""


@dataclass(frozen=True)
class Side:
    """A simulator to measure, and the ways to use the cores that are tried, by their labels."""

    name: str
    title: str
    ways: Mapping[str, Callable[[Work], Contestant]]


@dataclass
class Timed:
    """A side in one of its ways, and how long it took."""

    side: Side
    way: str
    contestant: Contestant
    start_up: float  # seconds until it was ready
    warm_up: float = math.inf  # seconds of the warm-up rounds
    tried: dict[str, float] = field(default_factory=dict)  # the best trial of every way
    seconds: list[float] = field(default_factory=list)  # seconds a round, one per block

    def warm(self, plan: Plan) -> None:
        """Run the rounds of the warm-up."""
        self.warm_up = self.contestant.rounds(plan.warm_up)

    def block(self, plan: Plan) -> None:
        """Run one block of rounds."""
        self.seconds.append(plan.seconds(self.contestant))


def measure(
    work: Work, plan: Plan, sides: Sequence[Side], tell: Tell = lambda words: None
) -> dict[str, Any]:
    """Time the sides, as JSON holds it; a side that fails is reported and left out."""
    key = work.workload.key
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        timed: list[Timed] = []
        for side in sides:
            timed += _fastest(side, work, plan, failures, tell, stack)
        tell(f"({key}) looking at the idle machine")
        idle_load = busy_share()
        for repeat in range(plan.repeats):
            tell(f"({key}) repetition {repeat + 1} of {plan.repeats}")
            timed = _turn(timed, Timed.block, plan, failures)
            timed = timed[1:] + timed[:1]
        timed.sort(key=lambda entry: sides.index(entry.side))
        weights = {entry.side.name: entry.contestant.weights() for entry in timed}
    seconds = {entry.side.name: entry.seconds for entry in timed}
    results = []
    reference = weights.get(REFERENCE, next(iter(weights.values()), work.initial))
    for entry in timed:
        name, facts = entry.side.name, entry.contestant.facts
        compared = name != OURS and OURS in seconds
        results.append(
            {
                "name": name,
                "version": facts["version"],
                "threads": facts.get("threads", entry.way),
                "seconds_per_round": median(entry.seconds),
                "repetitions": entry.seconds,
                "start_up_seconds": entry.start_up,
                "warm_up_seconds": entry.warm_up,
                "tried_seconds_per_round": entry.tried,
                "distance": relative_distance(weights[name], reference),
                "ratio": paired_ratio(entry.seconds, seconds[OURS]) if compared else None,
            }
        )
    return {
        "workload": asdict(work.workload),
        "plan": asdict(plan),
        "sides": results,
        "failures": failures,
        "idle_load": idle_load,
        "moved": relative_distance(work.initial, reference) if timed else None,
    }


def _fastest(
    side: Side, work: Work, plan: Plan, failures: Failures, tell: Tell, stack: ExitStack
) -> list[Timed]:
    """A side in its fastest way, warmed up; the others are closed. Nothing if none works."""
    timed: list[Timed] = []
    for way, start in side.ways.items():
        tell(f"{side.title}: {way}")
        began = perf_counter()
        try:
            contestant = start(work)
        except RuntimeError as error:
            failures[side.name] = f"{side.title} {first_line(error)}"
            continue
        spent = perf_counter() - began
        stack.callback(contestant.close)
        timed.append(Timed(side, way, contestant, start_up=spent))
    timed = _turn(timed, Timed.warm, plan, failures)
    for _ in range(plan.trials):  # in turns, like the repetitions
        timed = _turn(timed, Timed.block, plan, failures)
    if not timed:
        return []
    failures.pop(side.name, None)  # of another way
    best = min(timed, key=lambda entry: min(entry.seconds))
    best.tried = {entry.way: min(entry.seconds) for entry in timed}
    best.seconds = []
    for entry in timed:
        if entry is not best:
            entry.contestant.close()
    return [best]


def _turn(
    timed: list[Timed], work: Callable[[Timed, Plan], None], plan: Plan, failures: Failures
) -> list[Timed]:
    """One after the other; who fails is closed and left out."""
    kept = []
    for entry in timed:
        try:
            work(entry, plan)
            kept.append(entry)
        except RuntimeError as error:
            failures[entry.side.name] = f"{entry.side.title} {first_line(error)}"
            entry.contestant.close()
    return kept


def busy_share(seconds: float = 1.0) -> float | None:
    """Share of all cores in use while this process sleeps; None if the system does not say."""
    listing = Path("/proc/stat")
    if not listing.exists():
        return None
    before = listing.read_text().split()[1:9]
    time.sleep(seconds)
    after = listing.read_text().split()[1:9]
    spent = [int(late) - int(early) for early, late in zip(before, after, strict=True)]
    return 1 - (spent[3] + spent[4]) / sum(spent) if sum(spent) > 0 else None
