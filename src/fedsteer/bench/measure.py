"""Rounds in turns, and intervals of paired ratios.

A repetition is one block of rounds by every side, one after the other, so that a disturbance of
the machine hits all of them; the order rotates by one from repetition to repetition. Ratios are
taken within a repetition.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from fedsteer.bench.sides import Contestant, Sides, Weights
from fedsteer.bench.workloads import Work
from fedsteer.report.statistics import estimate

OURS, REFERENCE = "fedsteer", "plain"


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

    def seconds(self, contestant: Contestant) -> float:
        """Seconds of a round, over one block."""
        if self.lead_in:
            contestant.rounds(self.lead_in)
        return contestant.rounds(self.block) / self.block


def measure(
    work: Work, plan: Plan, sides: Sides, tell: Callable[[str], None] = lambda words: None
) -> dict[str, Any]:
    """Time the sides, each with its fastest choice of threads; the numbers as JSON holds them.

    `tell` hears of every side and every repetition.
    """
    key = work.workload.key
    fastest: dict[str, Contestant] = {}
    tried: dict[str, dict[str, float]] = {}
    for name, ways in sides.items():
        tell(f"({key}) {name}: choosing threads")
        started = {way: start(work) for way, start in ways.items()}
        for contestant in started.values():
            contestant.rounds(plan.warm_up)
        tried[name] = dict.fromkeys(started, math.inf)
        for _ in range(plan.trials):  # in turns, like the repetitions
            for way, contestant in started.items():
                tried[name][way] = min(tried[name][way], plan.seconds(contestant))
        fastest[name] = started[min(tried[name], key=tried[name].__getitem__)]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    turns = list(sides)
    for repeat in range(plan.repeats):
        tell(f"({key}) repetition {repeat + 1} of {plan.repeats}")
        for name in turns:
            seconds[name].append(plan.seconds(fastest[name]))
        turns = turns[1:] + turns[:1]
    reference = fastest[REFERENCE].weights()
    return {
        "workload": asdict(work.workload),
        "plan": asdict(plan),
        "sides": [
            {
                "name": name,
                **contestant.facts,
                "seconds_per_round": median(seconds[name]),
                "repetitions": seconds[name],
                "tried_seconds_per_round": tried[name],
                "distance": relative_distance(contestant.weights(), reference),
                "ratio": None if name == OURS else paired_ratio(seconds[name], seconds[OURS]),
            }
            for name, contestant in fastest.items()
        ],
        "moved": relative_distance(work.initial, reference),
    }


def paired_ratio(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    """The geometric mean ratio with Student's 95 % interval, unbounded for a single pair."""
    found = estimate(np.log(np.divide(slow, fast)))
    assert found is not None
    half = math.inf if found.half is None else found.half
    logarithms = {"mean": found.mean, "low": found.mean - half, "high": found.mean + half}
    return {name: math.exp(value) for name, value in logarithms.items()}


def relative_distance(found: Weights, reference: Weights) -> float:
    """|found - reference| / |reference|."""
    wanted = reference.astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
