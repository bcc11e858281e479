"""The measuring core of `benchmarks/peers`: turns, failures, the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pytest
from benchmarks.peers.measure import Contestant, Side, busy_share, measure
from benchmarks.peers.table import to_text

from fedsteer.bench.measure import Plan
from fedsteer.bench.sides import Weights
from fedsteer.bench.workloads import Work, make_work
from tests.bench.tiny import TINY

PLAN = Plan(warm_up=1, trials=1, block=1, repeats=2)


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

    ways = {label: partial(give, label=label) for label in contestants}
    return Side(name=name, title=name.title(), ways=ways)


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
