"""Flower's real engine: a SuperLink and SuperNodes as processes on this machine.

`make test-engine` runs the whole story with TLS and authentication, kills and restarts; the short
one stays with the other tests.
"""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fedsteer.flower.identity import key_name
from fedsteer.records import Run
from tests.flower.engine import Engine, make_key, rounds_of, tools_missing

pytestmark = pytest.mark.skipif(tools_missing() is not None, reason=str(tools_missing()))


def test_one_node_trains_on_the_real_engine(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Engine(tmp_path / "engine", secure=False) as engine:
        engine.superlink()
        engine.supernode("node-0", partition=0)
        engine.submit(num_rounds=1, round_timeout=40.0, fedsteer_folder=str(out))
        engine.wait_for(lambda: (out / "result.json").exists(), 90, "the run to finish")
    run = Run(out)
    assert [row["round"] for row in run.rounds] == [1] and run.finished
    assert [(row["client"], row["event"]) for row in run.rows("clients")] == [("client-0", "fresh")]
    assert run.rounds[0]["accuracy"] > 0


@pytest.mark.engine
def test_nothing_is_lost_when_nodes_and_the_superlink_are_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = {"num_rounds": 100, "round_timeout": 45.0, "fedsteer_folder": str(out)}
    config |= {"fedsteer_authenticated": True, "fedsteer_min_available_nodes": 3}
    with Engine(tmp_path / "engine") as engine:
        engine.superlink()
        keys = [make_key(engine.folder / f"key-{i}") for i in range(4)]
        names = [key_name(public) for _, public in keys]
        for path, _ in keys[:3]:
            engine.flwr("supernode", "register", str(path.with_suffix(".pub")), "here")
        for i in range(3):
            engine.supernode(f"node-{i}", i, keys[i][0])
        engine.supernode("unregistered", 0, keys[3][0])  # would be partition 0, too
        engine.supernode("unkeyed", 1)
        for name in ("unregistered", "unkeyed"):
            engine.wait_for(
                lambda name=name: "Exit Code: 305" in engine.log_of(name), 60, "refusal"
            )

        engine.submit(**config)
        engine.wait_for(lambda: all(len(visits(out, n)) > 1 for n in names[:3]), 150, "all three")

        # A SuperNode is killed, misses a round, comes back, and is who it was.
        engine.end("node-2", signal.SIGKILL)
        engine.wait_for(lambda: visits(out, names[2], "failed"), 120, "a round without it")
        (missed, *_) = visits(out, names[2], "failed")

        def is_back() -> bool:
            if engine.ended("node-2"):  # as a service manager would: Flower lets it in only when
                engine.supernode("node-2", 2, keys[2][0])  # two heartbeats are missing
            return bool(visits(out, names[2])[-1]["round"] > missed["round"])

        engine.wait_for(is_back, 150, "the killed node to come back")
        back = visits(out, names[2])[2]
        assert back["staleness"] >= 2 and back["relative_error"] < 1  # its coordinates are there

        # The SuperLink is killed, and with it the ServerApp; the run resumes.
        engine.end("superlink", signal.SIGKILL)
        before = (out / "rounds.jsonl").read_bytes()
        finished = before.count(b"\n")
        engine.superlink()
        engine.submit(**config)
        engine.wait_for(
            lambda: all(visits(out, n)[-1]["round"] > finished for n in names[:3]), 150, "all again"
        )
        first = [next(v for v in visits(out, n) if v["round"] > finished) for n in names[:3]]
        assert all(visit["staleness"] >= 1 and visit["relative_error"] < 1 for visit in first)
    run = Run(out)
    assert (out / "rounds.jsonl").read_bytes().startswith(before)
    assert [row["round"] for row in run.rounds] == list(range(1, len(run.rounds) + 1))
    assert {row["client"] for row in run.rows("clients")} == set(names[:3])
    assert all("accuracy" in row for row in run.rounds)


@pytest.mark.engine
def test_a_node_that_hangs_for_a_while_holds_up_no_round(tmp_path: Path) -> None:
    """The round is closed without it, and it is not asked again before it has answered."""
    out = tmp_path / "out"
    with Engine(tmp_path / "engine", secure=False) as engine:
        engine.superlink()
        for i in range(3):
            engine.supernode(f"node-{i}", i)
        engine.submit(
            num_rounds=100,
            round_timeout=300.0,
            fedsteer_folder=str(out),
            fedsteer_enough=0.6,
            fedsteer_min_available_nodes=3,
        )
        engine.wait_for(lambda: visits(out, "client-2"), 90, "all three")
        engine.end("node-2", signal.SIGSTOP)
        engine.wait_for(lambda: visits(out, "client-2", "failed"), 60, "a round without it")
        closed = visits(out, "client-2", "failed")[-1]
        engine.wait_for(lambda: len(rounds_of(out)) > closed["round"] + 2, 60, "more rounds")
        engine.end("node-2", signal.SIGCONT)
        engine.wait_for(
            lambda: visits(out, "client-2")[-1]["round"] > closed["round"], 90, "it to be back"
        )
    assert closed["reason"] == "did not answer before the round was closed"
    rounds = {row["round"]: row for row in Run(out).rounds}
    assert rounds[closed["round"]]["asked"] == 3 and rounds[closed["round"] + 1]["asked"] == 2
    seconds = [row["seconds"] for row in Run(out).rows("timing")]
    assert max(seconds) < 60.0  # and not 300


@pytest.mark.engine
@pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'flwr[simulation]' brings ray")
def test_a_hundred_virtual_clients_on_the_simulation_engine(tmp_path: Path) -> None:
    out, app = tmp_path / "out", Path(__file__).parents[2] / "examples" / "flower-digits"
    with Engine(tmp_path / "engine", secure=False) as engine:
        engine.superlink("--simulation")
        engine.submit(app, virtual=100, num_rounds=3, fedsteer_folder=str(out))
        engine.wait_for(lambda: (out / "result.json").exists(), 180, "the simulation to finish")
    run = Run(out)
    assert [row["asked"] for row in run.rounds] == [100, 100, 100]
    assert all(0 < row["fresh"] == 100 - row["failed"] for row in run.rounds)


def visits(folder: Path, client: str, event: str = "fresh") -> list[dict[str, Any]]:
    """Rows of one client, of rounds that are finished."""
    finished = len(rounds_of(folder))
    rows = Run(folder).rows("clients") if finished else []
    return [
        row
        for row in rows
        if row["client"] == client and row["event"] == event and row["round"] <= finished
    ]
