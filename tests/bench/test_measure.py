"""Same work, same weights; ratios and their intervals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fedsteer.bench.machine import busy_share
from fedsteer.bench.measure import (
    Measured,
    Plan,
    Side,
    Timed,
    Variant,
    Weights,
    measure,
    paired_ratio,
    relative_distance,
)
from fedsteer.bench.sides import SIDES, make_simulation, one_or_all
from fedsteer.bench.table import to_json, to_text
from fedsteer.bench.workloads import make_work
from fedsteer.cli import main
from tests.bench.tiny import TINY

PLAN = Plan(warm_up=1, trials=1, block=1, repeats=2)


def test_fedsteer_ends_with_the_weights_of_the_plain_loop() -> None:
    work = make_work(TINY["b"])
    sides = [SIDES["fedsteer"], SIDES["plain"]]
    told: list[str] = []
    found = measure(work, PLAN, sides, cores=1, tell=told.append)
    assert len(told) == PLAN.steps(sides, cores=1)
    ours, plain = found.timed
    assert plain.distance == 0 and ours.distance is not None and ours.distance < 1e-6
    assert len(ours.seconds) == len(plain.seconds) == 2 and not found.failures
    assert found.moved is not None and found.moved > 1e-3, "else equal weights would say nothing"
    simulation = make_simulation(work)
    for _ in range(PLAN.rounds):
        simulation.round()
    moved = relative_distance(work.initial, simulation.model.numpy())
    assert found.moved == pytest.approx(moved, rel=1e-4), "all rounds of the plan were done"


@dataclass
class Fake:
    """A contestant with a fixed time per round that fails after some rounds."""

    seconds: float
    rounds_left: int = 1_000
    facts: dict[str, Any] = field(default_factory=lambda: {"version": "fake 1.2.3, torch 2"})
    closed: int = 0

    def rounds(self, count: int) -> float:
        self.rounds_left -= count
        if self.rounds_left < 0:
            raise RuntimeError("ran out of memory\nin a long traceback")
        return count * self.seconds

    def weights(self) -> Weights:
        return np.ones(TINY["a"].network().dim, np.float32)

    def close(self) -> None:
        self.closed += 1


def fake(name: str, **contestants: Fake) -> Side:
    variants = [Variant(label, 1) for label in contestants]
    return Side(name, name.title(), lambda work, v: contestants[v.label], lambda cores: variants)


def test_the_fastest_variant_is_measured_and_the_others_are_closed() -> None:
    slow, fast, broken = Fake(0.2), Fake(0.1), Fake(0.01, rounds_left=0)
    side = fake("any", slow=slow, fast=fast, broken=broken)
    (timed,) = measure(make_work(TINY["a"]), PLAN, [side], cores=1).timed
    assert timed.variant.label == "fast" and timed.seconds == pytest.approx([0.1, 0.1])
    assert timed.tried == pytest.approx({"slow": 0.2, "fast": 0.1})
    assert slow.rounds_left == 1_000 - 2 and slow.closed and broken.closed and fast.closed


@pytest.mark.parametrize("rounds_left", [0, 1, 2, 3])
def test_a_side_that_fails_is_reported_and_left_out(rounds_left: int) -> None:
    sides = [fake("bad", one=Fake(0.1, rounds_left)), fake("good", one=Fake(0.1))]
    found = measure(make_work(TINY["a"]), PLAN, sides, cores=1)
    assert [timed.side.name for timed in found.timed] == ["good"]
    assert len(found.timed[0].seconds) == PLAN.repeats
    assert found.failures == {"bad": "Bad ran out of memory"}


def test_nothing_is_left_when_every_side_fails() -> None:
    found = measure(make_work(TINY["a"]), PLAN, [fake("bad", one=Fake(0.1, 0))], cores=1)
    assert found.timed == [] and found.moved is None
    assert to_text(found).endswith("Bad ran out of memory")


def test_a_constant_ratio_has_no_width() -> None:
    ratio = paired_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((2, 2, 2))


def test_the_interval_is_students() -> None:
    """Log ratios 0 and 2: mean 1, standard error 1, t quantile 12.7062 with one degree."""
    ratio = paired_ratio([1.0, np.e**2], [1.0, 1.0])
    assert np.log([ratio.mean, ratio.low, ratio.high]) == pytest.approx([1, 1 - 12.7062, 13.7062])
    single = paired_ratio([3.0], [1.0])
    assert (single.low, single.high) == (0.0, np.inf)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(2_000):
        slow = 3 * np.exp(0.1 * draw.standard_normal(8))
        ratio = paired_ratio(slow, np.ones(8))
        hits += ratio.low <= 3 <= ratio.high
    assert 0.935 < hits / 2_000 < 0.965


def test_one_thread_and_one_per_core_are_tried() -> None:
    assert [variant.threads for variant in one_or_all(1)] == [1]
    assert [variant.threads for variant in one_or_all(4)] == [1, 4]


def test_the_busy_share_is_a_share() -> None:
    share = busy_share(0.2)
    assert share is None or 0 <= share <= 1


def timed(name: str, seconds: list[float], distance: float) -> Timed:
    return Timed(
        side=fake(name),
        variant=Variant("2 threads", 2),
        contestant=Fake(1.0),
        start_up=1.5,
        warm_up=0.25,
        tried={"1 thread": 0.02, "2 threads": 0.01},
        seconds=seconds,
        distance=distance,
    )


def test_the_table() -> None:
    ours, peer = timed("fedsteer", [0.01, 0.02], 1e-7), timed("plain", [0.03, 0.06], 1e-3)
    found = Measured(TINY["a"], PLAN, [ours, peer], failures={})
    lines = to_text(found).splitlines()
    assert "95 % interval" in lines[2]
    row = "Fedsteer 1.2.3 2 threads 15.0 1 1.5 s 0.2 s 1.0e-07"
    assert lines[3].split() == row.split()
    row = "Plain 1.2.3 2 threads 45.0 3.00 3.00 to 3.00 1.5 s 0.2 s 1.0e-03"
    assert lines[4].split() == row.split()
    assert lines[-1] == "  !! final weights differ by more than 1e-05: Plain"
    assert "tried for Plain (ms a round): 1 thread 20.0, 2 threads 10.0" in lines[-2]
    table = json.loads(json.dumps(to_json(found)))
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
