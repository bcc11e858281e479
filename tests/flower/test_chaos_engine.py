"""Faults as real federations have them, on Flower's real engine: `make chaos`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from fedsteer.records import Run
from tests.flower.engine import Engine, rounds_of, tools_missing

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.engine,
    pytest.mark.skipif(tools_missing() is not None, reason=str(tools_missing())),
]

FAULT = 3
"""The round in which a client does something wrong."""


def test_all_nodes_stop_and_start_again(tmp_path: Path) -> None:
    """The model holds while nobody is there, and later steps are not longer for it."""
    out, nodes = tmp_path / "out", ["node-0", "node-1"]
    with Engine(tmp_path / "engine", secure=False) as engine:
        engine.superlink()
        start(engine, partitions=[0, 1])
        engine.wait_for(lambda: activated(engine) == 2, 120, "the nodes")
        # Rounds have no time limit, so a slow machine costs no update: the SuperLink answers for
        # nodes that stop. A round that finds none online waits for the registration timeout.
        engine.submit(
            num_rounds=100,
            round_timeout=0.0,
            fedsteer_folder=str(out),
            fedsteer_registration_timeout=2.0,
        )
        engine.wait_for(lambda: len(rounds_of(out)) >= 3, 180, "rounds with them")
        for node in nodes:
            engine.end(node, signal.SIGTERM)
        engine.wait_for(lambda: all(map(engine.ended, nodes)), 60, "the nodes to stop")
        engine.wait_for(lambda: len(empty(rounds_of(out))) >= 2, 60, "rounds without them")
        start(engine, partitions=[0, 1])
        engine.wait_for(lambda: rounds_of(out)[-2]["fresh"], 180, "rounds with them again")
        rounds, log = rounds_of(out), engine.log_of_run()
    held = empty(rounds)
    before, after = rounds[: held[0]["round"] - 1], rounds[held[-1]["round"] :]
    assert all(row["delta_norm"] == 0.0 for row in held)
    assert {row["accuracy"] for row in held} == {before[-1]["accuracy"]}
    assert log.count("a round without a fresh update: the model stays as it is") == len(held)
    assert max(steps(after)) < 1.2 * max(steps(before))


def test_a_client_reports_a_million_data_points_and_goes(tmp_path: Path) -> None:
    """The steps of the others are not much shorter for it."""
    # Most data are at a client that stays; the median is small, and with it what is believed.
    run = run_with_fault("size", tmp_path, partitions=[0, 1, 990], rule="fedavg")
    assert [row["fresh"] for row in run.rounds] == [3, 3, 3, 2, 2]
    assert min(steps(run.rounds[FAULT:])) > 0.5 * min(steps(run.rounds[: FAULT - 1]))
    believed = {row["size"] for row in run.rows("clients") if row.get("claimed_size") == 1e6}
    assert max(believed) < 1000


def test_an_update_ten_thousand_times_too_long(tmp_path: Path) -> None:
    """Neither this step nor a later one is much longer for it."""
    run = run_with_fault("length", tmp_path, partitions=[0, 1])
    assert max(steps(run.rounds[FAULT - 1 :])) < 2.0 * max(steps(run.rounds[: FAULT - 1]))
    shortened = [row for row in run.rows("clients") if row.get("update_factor", 1.0) < 1.0]
    assert [(row["round"], row["client"]) for row in shortened] == [(FAULT, "client-1")]


def run_with_fault(fault: str, folder: Path, partitions: list[int], **config: Any) -> Run:
    """Two rounds, one in which client 1 has a fault, and two more."""
    out = folder / "out"
    with Engine(folder / "engine", secure=False) as engine:
        engine.superlink()
        start(engine, partitions)
        engine.submit(
            num_rounds=FAULT + 2,
            round_timeout=0.0,
            fault=fault,
            fault_round=FAULT,
            fedsteer_folder=str(out),
            fedsteer_min_available_nodes=len(partitions),
            **config,
        )
        engine.wait_for(lambda: (out / "result.json").exists(), 180, "the run to finish")
    return Run(out)


def start(engine: Engine, partitions: list[int]) -> None:
    for number, partition in enumerate(partitions):
        engine.supernode(f"node-{number}", partition)


def activated(engine: Engine) -> int:
    """How often the SuperLink has welcomed a node."""
    return engine.log_of("superlink").count("Activated node")


def empty(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those without a fresh update."""
    return [row for row in rounds if not row["fresh"]]


def steps(rounds: list[dict[str, Any]]) -> list[float]:
    """Their lengths but for the step factor, which rises from round to round anyway."""
    return [row["delta_norm"] / row["step_factor"] for row in rounds]
