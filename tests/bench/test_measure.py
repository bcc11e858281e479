"""Same work, same weights; ratios and their intervals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pytest

from fedsteer.bench.machine import busy_share
from fedsteer.bench.measure import (
    Contestant,
    Plan,
    Side,
    Weights,
    measure,
    paired_ratio,
    relative_distance,
)
from fedsteer.bench.sides import make_simulation, sides_here, threads_to_try
from fedsteer.bench.table import to_text
from fedsteer.bench.workloads import Work, make_work
from fedsteer.cli import main
from tests.bench.tiny import TINY

PLAN = Plan(warm_up=1, trials=1, block=1, repeats=2)


def test_fedsteer_ends_with_the_weights_of_the_plain_loop() -> None:
    work = make_work(TINY["b"])
    sides = [side for side in sides_here(cores=1) if side.name != "fedsteer-gpu"]
    told: list[str] = []
    found = measure(work, PLAN, sides, told.append)
    assert len(told) == PLAN.steps(sides)
    ours, plain = found["sides"]
    assert plain["distance"] == 0 and ours["distance"] < 1e-6
    assert len(ours["repetitions"]) == len(plain["repetitions"]) == 2 and not found["failures"]
    assert found["moved"] > 1e-3, "else equal weights would say nothing"
    simulation = make_simulation(work)
    for _ in range(PLAN.rounds):
        simulation.round()
    moved = relative_distance(work.initial, simulation.model.numpy())
    assert found["moved"] == pytest.approx(moved, rel=1e-4), "all rounds of the plan were done"


@dataclass
class Fake:
    """A contestant with fixed times per round that fails after some rounds."""

    times: Iterator[float]
    rounds_left: int = 1_000
    model: float = 1.0
    facts: dict[str, Any] = field(default_factory=lambda: {"version": "fake 1.2.3, torch 2"})
    closed: int = 0

    def rounds(self, count: int) -> float:
        self.rounds_left -= count
        if self.rounds_left < 0:
            raise RuntimeError("ran out of memory\nin a long traceback")
        return count * next(self.times)

    def weights(self) -> Weights:
        return np.full(TINY["a"].network().dim, self.model, np.float32)

    def close(self) -> None:
        self.closed += 1


def always(seconds: float, rounds_left: int = 1_000) -> Fake:
    return Fake(repeat(seconds), rounds_left)


def fake(name: str, **contestants: Fake) -> Side:
    def give(work: Work, label: str) -> Contestant:
        return contestants[label]

    return Side(name, name.title(), {label: partial(give, label=label) for label in contestants})


def test_the_fastest_way_is_measured_and_the_others_are_closed() -> None:
    slow, fast, broken = always(0.2), always(0.1), always(0.01, rounds_left=0)
    side = fake("any", slow=slow, fast=fast, broken=broken)
    found = measure(make_work(TINY["a"]), PLAN, [side])
    (timed,) = found["sides"]
    assert timed["threads"] == "fast" and timed["repetitions"] == pytest.approx([0.1, 0.1])
    assert timed["tried_seconds_per_round"] == pytest.approx({"slow": 0.2, "fast": 0.1})
    assert slow.rounds_left == 1_000 - 2 and slow.closed and broken.closed and fast.closed
    assert not found["failures"]


def test_sides_take_turns_and_each_begins_once() -> None:
    order: list[str] = []

    def times(name: str) -> Iterator[float]:
        while True:
            order.append(name)
            yield 1.0

    sides = [fake(name, one=Fake(times(name))) for name in "abc"]
    found = measure(make_work(TINY["a"]), replace(PLAN, repeats=3), sides)
    assert "".join(order) == "aabbcc" + "abc" + "bca" + "cab"
    assert [side["name"] for side in found["sides"]] == ["a", "b", "c"]


@pytest.mark.parametrize("rounds_left", [0, 1, 2, 3])
def test_a_side_that_fails_is_reported_and_left_out(rounds_left: int) -> None:
    bad = always(0.1, rounds_left)
    sides = [fake("bad", one=bad), fake("good", one=always(0.1))]
    found = measure(make_work(TINY["a"]), PLAN, sides)
    assert [side["name"] for side in found["sides"]] == ["good"] and bad.closed
    assert len(found["sides"][0]["repetitions"]) == PLAN.repeats
    assert found["failures"] == {"bad": "Bad ran out of memory"}


def test_nothing_is_left_when_every_side_fails() -> None:
    sides = [fake("bad", one=always(0.1, rounds_left=0))]
    found = measure(make_work(TINY["a"]), PLAN, sides)
    assert found["sides"] == [] and found["moved"] is None
    assert to_text(found, sides).endswith("Bad ran out of memory")


def test_a_constant_ratio_has_no_width() -> None:
    ratio = paired_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert ratio == pytest.approx({"mean": 2, "low": 2, "high": 2})


def test_the_interval_is_students() -> None:
    """Log ratios 0 and 2: mean 1, standard error 1, t quantile 12.7062 with one degree."""
    ratio = paired_ratio([1.0, np.e**2], [1.0, 1.0])
    logarithms = np.log([ratio["mean"], ratio["low"], ratio["high"]])
    assert logarithms == pytest.approx([1, 1 - 12.7062, 13.7062])
    single = paired_ratio([3.0], [1.0])
    assert (single["low"], single["high"]) == (0.0, np.inf)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(2_000):
        slow = 3 * np.exp(0.1 * draw.standard_normal(8))
        ratio = paired_ratio(slow, np.ones(8))
        hits += ratio["low"] <= 3 <= ratio["high"]
    assert 0.935 < hits / 2_000 < 0.965


def test_one_thread_and_one_per_core_are_tried() -> None:
    assert threads_to_try(1) == {"1 thread": 1}
    assert threads_to_try(4) == {"1 thread": 1, "4 threads": 4}


def test_the_busy_share_is_a_share() -> None:
    share = busy_share(0.2)
    assert share is None or 0 <= share <= 1


def test_the_table() -> None:
    # Warm-up, trial, and two repetitions; the weights of the second side are a thousandth off.
    sides = [
        fake("fedsteer", many=Fake(iter([0.25, 0.01, 0.01, 0.02])), one=always(0.02)),
        fake("plain", many=Fake(iter([0.25, 0.01, 0.03, 0.06]), model=1.0), one=always(0.02)),
        fake("other", many=Fake(iter([0.25, 0.01, 0.03, 0.06]), model=1.001), one=always(0.02)),
    ]
    found = measure(make_work(TINY["a"]), PLAN, sides)
    lines = to_text(found, sides).splitlines()
    assert "95 % interval" in lines[2]
    rows = [
        "Fedsteer 1.2.3 many 15.0 1 0.0 s 0.2 s 0.0e+00",
        "Plain 1.2.3 many 45.0 3.00 3.00 to 3.00 0.0 s 0.2 s 0.0e+00",
        "Other 1.2.3 many 45.0 3.00 3.00 to 3.00 0.0 s 0.2 s 1.0e-03",
    ]
    assert [line.split() for line in lines[3:6]] == [row.split() for row in rows]
    assert "  tried for Plain (ms a round): many 10.0, one 20.0" in lines
    assert lines[-1] == "  !! final weights differ by more than 1e-05: Other"
    table = json.loads(json.dumps(found))
    assert table["sides"][1]["ratio"]["mean"] == pytest.approx(3)
    assert table["sides"][0]["ratio"] is None


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--workload", "a", "--peers", "plain", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["cores"] >= 1
    (workload,) = found["workloads"]
    names = {side["name"] for side in workload["sides"]}
    assert {"fedsteer", "plain"} <= names
    assert all(side["distance"] < 1e-5 for side in workload["sides"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--workload d", "unknown workload 'd'"),
        ("--peers plane", "unknown peer 'plane'; did you mean 'plain'?"),
        ("--peers fedjax", "fedjax is measured by `make bench-peers` in a clone"),
        ("--repeats 1", "--repeats must be at least 2, not 1"),
    ],
)
def test_mistakes(
    arguments: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
