"""Same work, same weights; ratios and their intervals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsteer.bench import sides
from fedsteer.bench.machine import busy_share
from fedsteer.bench.measure import Measured, Plan, Timed, measure, paired_ratio, relative_distance
from fedsteer.bench.sides import SIDES, Variant, installed
from fedsteer.bench.sides.fedsteer import make_simulation
from fedsteer.bench.table import to_json, to_text
from fedsteer.bench.work import make_work
from fedsteer.cli import main
from tests.bench.tiny import TINY


def test_fedsteer_ends_with_the_weights_of_the_plain_loop(tmp_path: Path) -> None:
    work = make_work(TINY["b"])
    plan = Plan(warm_up=1, trials=1, block=1, repeats=2)
    pythons = {"fedsteer": sys.executable, "plain": sys.executable}
    told: list[str] = []
    found = measure(work.workload, plan, pythons, tmp_path, cores=1, tell=told.append)
    assert len(told) == plan.steps(pythons, 1)
    ours, plain = found.timed
    assert plain.distance == 0 and ours.distance is not None and ours.distance < 1e-6
    assert len(ours.seconds) == len(plain.seconds) == 2 and not found.failures
    assert found.moved is not None and found.moved > 1e-3, "else equal weights would say nothing"
    simulation = make_simulation(work)
    for _ in range(plan.rounds):
        simulation.round()
    moved = relative_distance(work.initial, simulation.model.numpy())
    assert found.moved == pytest.approx(moved, rel=1e-4), "all rounds of the plan were done"


def test_a_side_that_cannot_run_is_reported_and_left_out(tmp_path: Path) -> None:
    plan = Plan(warm_up=1, trials=1, block=1, repeats=2)
    pythons = {"fedsteer": sys.executable, "pfl": sys.executable}
    found = measure(TINY["a"], plan, pythons, tmp_path, cores=1)
    if "pfl" in found.failures:
        assert "No module named 'pfl'" in found.failures["pfl"]
        assert [timed.side.name for timed in found.timed] == ["fedsteer"]
        assert "No module named 'pfl'" in to_text(found)
    else:
        assert [timed.side.name for timed in found.timed] == ["fedsteer", "pfl"]


PEERS = [name for name in SIDES if name in ("pfl", "fedjax", "flower") and installed(SIDES[name])]


@pytest.mark.skipif(not PEERS, reason="no other simulator is installed here")
def test_installed_simulators_end_with_the_weights_of_the_plain_loop(tmp_path: Path) -> None:
    pythons = dict.fromkeys(["plain", *PEERS], sys.executable)
    found = measure(TINY["b"], Plan(1, 1, 1, 2), pythons, tmp_path, cores=1)
    assert not found.failures
    assert all(timed.distance is not None and timed.distance < 1e-5 for timed in found.timed)


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


def test_the_busy_share_is_a_share() -> None:
    share = busy_share(0.2)
    assert share is None or 0 <= share <= 1


def timed(name: str, seconds: list[float], distance: float) -> Timed:
    facts = {"version": f"{name} 1.2.3, torch 2"}
    tried = {"1 thread": 0.02, "2 threads": 0.01}
    entry = Timed(SIDES[name], Variant("2 threads", 2), facts, 1.5, 0.25, tried)
    entry.seconds, entry.distance = seconds, distance
    return entry


def test_the_table() -> None:
    ours, peer = timed("fedsteer", [0.01, 0.02], 1e-7), timed("pfl", [0.03, 0.06], 1e-3)
    found = Measured(TINY["a"], Plan(5, 2, 10, 2), [ours, peer], {})
    lines = to_text(found).splitlines()
    assert "95 % interval" in lines[2]
    row = "fedsteer 1.2.3 2 threads 15.0 1 1.5 s 0.2 s 1.0e-07"
    assert lines[3].split() == row.split()
    row = "pfl-research 1.2.3 2 threads 45.0 3.00 3.00 to 3.00 1.5 s 0.2 s 1.0e-03"
    assert lines[4].split() == row.split()
    assert lines[-1] == "  !! final weights differ by more than 1e-05: pfl-research"
    assert "tried for pfl-research (ms a round): 1 thread 20.0, 2 threads 10.0" in lines[-2]
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
        ("--peers fedjax", "fedjax cannot run here: it needs fedjax"),
        ("--repeats 1", "--repeats must be at least 2, not 1"),
    ],
)
def test_mistakes(
    arguments: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sides, "find_spec", lambda name: None if name == "fedjax" else name)
    assert main(["bench", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
