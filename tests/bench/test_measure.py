"""Same work, same weights; ratios and their intervals."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from unittest.mock import ANY

import numpy as np
import pytest
import torch

from fedsteer.bench.measure import Plan, measure, paired_ratio, relative_distance
from fedsteer.bench.sides import Contestant, make_simulation, sides_here, threads_to_try
from fedsteer.bench.table import to_text
from fedsteer.bench.workloads import Work, make_work
from fedsteer.cli import main
from tests.bench.tiny import TINY

PLAN = Plan(warm_up=1, trials=1, block=1, repeats=2)


def test_fedsteer_ends_with_the_weights_of_the_plain_loop() -> None:
    work = make_work(TINY["b"])
    sides = {name: ways for name, ways in sides_here(cores=1).items() if name != "fedsteer-gpu"}
    told: list[str] = []
    found = measure(work, PLAN, sides, told.append)
    assert len(told) == len(sides) + PLAN.repeats
    ours, plain = found["sides"]
    assert plain["distance"] == 0 and ours["distance"] < 1e-6
    assert len(ours["repetitions"]) == len(plain["repetitions"]) == 2
    assert found["moved"] > 1e-3, "else equal weights would say nothing"
    simulation = make_simulation(work)
    for _ in range(PLAN.rounds):
        simulation.round()
    moved = relative_distance(work.initial, simulation.model.numpy())
    assert found["moved"] == pytest.approx(moved, rel=1e-4), "all rounds of the plan were done"


def test_sides_take_turns_in_their_fastest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def rounds(self: Contestant, number: int) -> float:
        order.append(self.facts["threads"])
        return number * {"slow": 0.2, "fast": 0.1, "only": 0.3}[self.facts["threads"]]

    def start(work: Work, way: str, model: float) -> Contestant:
        weights = torch.full_like(torch.from_numpy(work.initial), model)
        facts = {"version": "any 1.2.3, torch 2", "threads": way}
        return Contestant(round=lambda: None, model=lambda: weights, threads=1, facts=facts)

    monkeypatch.setattr(Contestant, "rounds", rounds)
    ours = {way: partial(start, way=way, model=1.001) for way in ("slow", "fast")}
    sides = {"fedsteer": ours, "plain": {"only": partial(start, way="only", model=1.0)}}
    found = measure(make_work(TINY["a"]), replace(PLAN, repeats=3), sides)
    choice = ["slow", "fast", "slow", "fast", "only", "only"]
    assert order == [*choice, "fast", "only", "only", "fast", "fast", "only"]
    lines = to_text(found).splitlines()
    rows = [
        "fedsteer 1.2.3 fast 100.0 1 1.0e-03",
        "plain PyTorch loop 1.2.3 only 300.0 3.00 3.00 to 3.00 0.0e+00",
    ]
    assert [line.split() for line in lines[3:5]] == [row.split() for row in rows]
    assert "  tried for fedsteer (ms a round): slow 200.0, fast 100.0" in lines
    assert "  !! final weights of fedsteer differ by more than 1e-05" in lines
    assert json.loads(json.dumps(found)) == found | {"workload": ANY}


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
