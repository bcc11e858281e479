"""What happens to real federations: `make chaos`. Each of these wrecked a run once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedsteer.flower import FedSteer, RuleStrategy, make_strategy
from fedsteer.flower.client import correction, proximal_strength
from fedsteer.flower.identity import key_name
from fedsteer.records import Run
from tests.flower.fake import Answer, FakeGrid, arrays, drifting, failing, late, reply_with, values

DIM = 6
INITIAL = {"w": np.zeros(DIM, np.float32)}
CLIENTS = range(1, 9)
STEPS, RATE = 2, 0.05
"""Local steps of a client, and their learning rate."""
RULES: dict[str, dict[str, Any]] = {
    "fedsteer": {},
    "fedavg": {},
    "fedprox": {},
    "fedvarp": {},
    "cluster_fedvarp": {},
    "fedstale": {},
    "mifa": {},
    "scaffold": {"local_rate": RATE},
    "fedawe": {},
}
"""Rules and the options they need; everything else is as by default."""


def optimum() -> np.ndarray:
    """Of the sum of the clients' quadratics, weighted by their data points."""
    goals = [np.cos(np.arange(DIM) + client) for client in CLIENTS]
    found: np.ndarray = np.average(goals, axis=0, weights=[10 + client for client in CLIENTS])
    return found


def distance(model: np.ndarray) -> float:
    return float(np.linalg.norm(model - optimum()))


def honest_client(client: int) -> Answer:
    """Gradient steps towards its own target, with whatever the rule adds to the gradient."""
    goal = np.cos(np.arange(DIM) + client)

    def answer(message: Message) -> Message:
        sent = values(message.content["arrays"])["w"]  # type: ignore[arg-type]
        pull, added = proximal_strength(message), correction(message) or {"w": 0.0}
        weights = sent
        for _ in range(STEPS):
            weights = weights - RATE * (weights - goal + pull * (weights - sent) + added["w"])
        trained = arrays(w=weights.astype(sent.dtype))
        return reply_with(message, trained, 10 + client, client, **{"num-steps": STEPS})

    return answer


def turns(client: int, *, absent: range = range(0), instead: Answer = late) -> Answer:
    """Every second round, but `instead` answers in the rounds of `absent`."""
    honest = honest_client(client)

    def answer(message: Message) -> Message | None:
        number = int(message.content["config"]["server-round"])
        if number in absent:
            return instead(message)
        return honest(message) if (number + client) % 2 else late(message)

    return answer


def spoilt(client: int, at: range, how: Callable[[Message, Message], None]) -> Answer:
    """An honest client that does one thing wrong in some rounds."""
    honest = turns(client)

    def answer(message: Message) -> Message | None:
        reply = honest(message)
        if reply is not None and int(message.content["config"]["server-round"]) in at:
            how(message, reply)
        return reply

    return answer


def strategy_of(rule: str, folder: Path) -> RuleStrategy:
    return make_strategy(rule, folder=str(folder), fraction_evaluate=0.0, **RULES[rule])


def run(grid: FakeGrid, folder: Path, rounds: int, rule: str, evaluate: Any = None) -> None:
    strategy = strategy_of(rule, folder)
    strategy.start(grid, arrays(**INITIAL), num_rounds=rounds, timeout=1.0, evaluate_fn=evaluate)


def steps(folder: Path) -> np.ndarray:
    """The lengths of the steps."""
    return np.array([row["delta_norm"] for row in Run(folder).rounds])


def without_waiting(grid: Any, *given: Any) -> dict[int, bytes]:
    return {node.node_id: bytes(node.public_key) for node in grid.get_nodes()}


@pytest.mark.chaos
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("how", ["silent", "failing", "offline"])
def test_nobody_there(
    how: str,
    rule: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model stays where it is, a warning says so, and later steps are not longer for it."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    monkeypatch.setattr("fedsteer.flower.strategy.await_nodes", without_waiting)
    answers = failing if how == "failing" else late
    grid = FakeGrid({c: turns(c, absent=range(21, 61), instead=answers) for c in CLIENTS})
    models = []

    def evaluate(number: int, record: Any) -> None:
        models.append(values(record)["w"])
        if how == "offline":
            grid.offline = set(CLIENTS) if 20 <= number < 60 else set()

    run(grid, tmp_path, 62, rule, evaluate)
    for model in models[21:61]:
        np.testing.assert_array_equal(model, models[20])
    assert caplog.text.count("a round without a fresh update: the model stays as it is") == 40
    assert distance(models[62]) < 1.1 * distance(models[20])
    assert steps(tmp_path)[60:].max() < 2 * steps(tmp_path)[10:20].max()


@pytest.mark.chaos
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("share", [1e4, 0.1])
def test_a_wrong_number_of_data_points(share: float, rule: str, tmp_path: Path) -> None:
    """One client reports 10^4 times its data points once, or all report a tenth from a round on."""

    def wrong(message: Message, reply: Message) -> None:
        reply.content["metrics"]["num-examples"] *= share  # type: ignore[index]

    once, always = range(20, 22), range(10, 61)
    odd = (
        {3: spoilt(3, once, wrong)} if share > 1 else {c: spoilt(c, always, wrong) for c in CLIENTS}
    )
    honest = {client: turns(client) for client in CLIENTS}
    run(FakeGrid(honest | odd), tmp_path / "wrong", 60, rule)
    run(FakeGrid(honest), tmp_path / "right", 60, rule)
    found, expected = steps(tmp_path / "wrong")[24:], steps(tmp_path / "right")[24:]
    assert found.min() > 0.4 * expected.min() and found.max() < 2.5 * expected.max()
    rows = Run(tmp_path / "wrong").rows("clients")
    disbelieved = {r["client"] for r in rows if r.get("claimed_size", 0) > r.get("size", 0)}
    assert disbelieved == ({"client-3"} if share > 1 else set())


@pytest.mark.chaos
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("times", [1e2, 1e4])
def test_an_oversized_update(times: float, rule: str, tmp_path: Path) -> None:
    """It is not replayed until its client returns, nor does it lengthen any step."""

    def blown_up(message: Message, reply: Message) -> None:
        sent, came = (values(m.content["arrays"])["w"] for m in (message, reply))  # type: ignore[arg-type]
        reply.content["arrays"] = arrays(w=(sent + times * (came - sent)).astype(np.float32))

    honest = {client: turns(client) for client in CLIENTS}
    run(FakeGrid(honest | {3: spoilt(3, range(20, 22), blown_up)}), tmp_path / "wrong", 50, rule)
    run(FakeGrid(honest), tmp_path / "right", 50, rule)
    found, expected = steps(tmp_path / "wrong"), steps(tmp_path / "right")
    assert found[19] < 2.5 * expected[10:].max()
    assert found[20:].max() < expected[10:].max() * 1.5  # the next rounds put it right
    assert found[24:].max() < 1.5 * expected[24:].max()
    shortened = [row for row in Run(tmp_path / "wrong").rows("clients") if "update_factor" in row]
    assert {row["round"] for row in shortened} == {20}


@pytest.mark.chaos
@pytest.mark.parametrize("rule", RULES)
def test_a_client_that_vanishes(rule: str, tmp_path: Path) -> None:
    """It leaves after a warning, and is welcome when it returns."""
    grid = FakeGrid({c: turns(c) for c in CLIENTS} | {3: turns(3, absent=range(41, 201))})
    strategy = strategy_of(rule, tmp_path)
    strategy.start(grid, arrays(**INITIAL), num_rounds=200)
    left = [row["client"] for row in Run(tmp_path).rows("clients") if row["event"] == "left"]
    assert left == ["client-3"]
    assert "client-3" not in strategy.run.state.clients.members
    strategy.start(grid, arrays(**INITIAL), num_rounds=204)
    assert "client-3" in strategy.run.state.clients.members


@pytest.mark.chaos
def test_a_copied_configuration_under_keys(tmp_path: Path) -> None:
    """Two sites report the same id: neither is locked out, and each keeps its own memory."""
    keys = {node: f"key {node}".encode() for node in (11, 12, 13)}
    grid = FakeGrid({11: drifting(1), 12: drifting(1), 13: drifting(2)}, keys)
    strategy = FedSteer(authenticated=True, folder=str(tmp_path), fraction_evaluate=0.0)
    strategy.start(grid, arrays(**INITIAL), num_rounds=5)
    rows = Run(tmp_path).rows("clients")
    assert {row["event"] for row in rows} == {"fresh"}
    assert {row["client"] for row in rows} == {key_name(key) for key in keys.values()}
