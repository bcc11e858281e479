"""Clients leave for good, between rounds, with all that is known of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedsteer import RULES, ConfigurationError
from fedsteer.flower import FedSteer, FedVARP, RuleStrategy, make_strategy
from fedsteer.flower.identity import key_name
from fedsteer.records import Run, read_checkpoint
from tests.files import read_json
from tests.flower.fake import Answer, FakeGrid, arrays, drifting, values

INITIAL = {"w": np.zeros(5, np.float32)}


def stepping(client: int, **options: Any) -> Answer:
    """A client that reports the number of steps, as SCAFFOLD needs."""
    inner = drifting(client, **options)

    def answer(message: Any) -> Any:
        reply = inner(message)
        reply.content["metrics"]["num-steps"] = 2  # type: ignore[union-attr,index]
        return reply

    return answer


def world(*clients: int) -> FakeGrid:
    return FakeGrid({10 + c: stepping(c) for c in clients})


def start(strategy: RuleStrategy, grid: FakeGrid, rounds: int, **more: Any) -> dict[str, Any]:
    return values(strategy.start(grid, arrays(**INITIAL), num_rounds=rounds, **more).arrays)


def members(strategy: RuleStrategy) -> set[Any]:
    return set(strategy.run.state.clients.members)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_client_that_left_is_no_member_and_returns_as_a_newcomer(
    rule: str, tmp_path: Path
) -> None:
    strategy = make_strategy(rule, folder=str(tmp_path), fraction_evaluate=0.0)
    start(strategy, world(1, 2, 3), 2)
    strategy.leave(["client-2"])
    assert members(strategy) == {"client-1", "client-3"}
    start(strategy, world(1, 3), 3)
    assert members(strategy) == {"client-1", "client-3"}
    start(strategy, world(1, 2, 3), 4)
    last = {row["client"]: row for row in Run(tmp_path).rows("clients") if row["round"] == 4}
    assert "staleness" not in last["client-2"] and last["client-3"]["staleness"] == 1


def test_a_client_that_left_no_longer_moves_the_model() -> None:
    """FedVARP would otherwise keep adding its last update."""
    population = {1: 11, 2: 12}
    strategy = FedVARP(preset="paper", fraction_evaluate=0.0, population=population)
    first = start(strategy, world(1, 2), 1)["w"]
    strategy.leave([2])
    grid = world(1)
    grid.answers[11] = lambda message: None
    alone = start(FedVARP(preset="paper", fraction_evaluate=0.0, population={1: 11}), world(1), 1)
    np.testing.assert_allclose(start(strategy, grid, 2)["w"] - first, alone["w"], rtol=1e-5)


@pytest.mark.parametrize("loop", ["ours", "Flower's"])
def test_strangers_are_refused_in_one_line(loop: str) -> None:
    strategy = FedSteer()
    strategy.leave([9])  # no client is known yet; the start will refuse it
    begin = strategy.start if loop == "ours" else lambda *a, **k: Strategy.start(strategy, *a, **k)
    with pytest.raises(ConfigurationError, match=r"client-9 is not a client .* known: none"):
        begin(world(1, 2), arrays(**INITIAL), num_rounds=1)
    begin(world(1, 2), arrays(**INITIAL), num_rounds=1)  # a refused request is forgotten
    with pytest.raises(ConfigurationError, match=r"client-9 is not .* client-1, client-2$"):
        strategy.leave(["client-1", 9])
    assert members(strategy) == {"client-1", "client-2"}
    strategy.leave([])


def test_a_single_client_needs_no_list() -> None:
    strategy = FedSteer()
    start(strategy, world(1, 2, 3), 1)
    strategy.leave("client-1")
    strategy.leave(2)
    assert members(strategy) == {"client-3"}


def test_leaving_between_two_starts_is_saved(tmp_path: Path) -> None:
    strategy = FedSteer(folder=str(tmp_path))
    start(strategy, world(1, 2, 3), 2)
    before = (tmp_path / "rounds.jsonl").read_bytes(), (tmp_path / "clients.jsonl").read_bytes()
    strategy.leave([3])
    after = (tmp_path / "rounds.jsonl").read_bytes(), (tmp_path / "clients.jsonl").read_bytes()
    assert after == before
    again = FedSteer(folder=str(tmp_path))  # the lock is free, too
    resumed = start(again, world(1, 2), 4)
    assert members(again) == {"client-1", "client-2"}
    in_memory = FedSteer()
    start(in_memory, world(1, 2, 3), 2)
    in_memory.leave([3])
    np.testing.assert_array_equal(resumed["w"], start(in_memory, world(1, 2), 4)["w"])


def test_leaving_before_the_start_waits_for_the_checkpoint(tmp_path: Path) -> None:
    start(FedSteer(folder=str(tmp_path)), world(1, 2, 3), 2)
    for _ in range(2):  # the same app can be submitted again
        strategy = FedSteer(folder=str(tmp_path))
        strategy.leave([3])
        start(strategy, world(1, 2), 2)
        assert members(strategy) == {"client-1", "client-2"}
    _, saved = read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert saved["run"]["identities"]["left"] == ["client-3"]


def test_members_of_a_population_can_leave_before_the_first_round(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": str(tmp_path), "population": {1: 11, 2: 12, 3: 13}}
    strategy = FedSteer(**options)
    strategy.leave([3])
    start(strategy, world(1, 2), 1)
    assert [row["weight_sum"] for row in Run(tmp_path).rounds] == [1.0]
    again = FedSteer(**options)
    start(again, world(1, 2), 2)
    assert members(again) == {"client-1", "client-2"}


def test_leaving_during_a_round_waits_for_its_end(tmp_path: Path) -> None:
    strategy = FedSteer(folder=str(tmp_path), fraction_evaluate=0.0)
    seen = []

    def client(message: Any) -> Any:
        if message.content["config"]["server-round"] == 2:
            strategy.leave([1])
            with pytest.raises(ConfigurationError, match="client-9"):
                strategy.leave([9])
            seen.append(members(strategy))
        return drifting(2)(message)

    start(strategy, FakeGrid({11: drifting(1), 12: client}), 2)
    assert seen == [{"client-1", "client-2"}] and members(strategy) == {"client-2"}
    assert Run(tmp_path).rounds[1]["active"] == 2  # it still had its part in that round


def test_leaving_during_evaluation_survives_a_kill(tmp_path: Path) -> None:
    def run(folder: Path, dies: bool) -> dict[str, Any]:
        strategy = FedSteer(folder=str(folder))
        grid = world(1, 2, 3)

        def evaluate(number: int, record: ArrayRecord) -> MetricRecord:
            if number == 2:
                strategy.leave([3])
                grid.offline.add(13)
                if dies:
                    raise KeyboardInterrupt
            return MetricRecord({"accuracy": 0.5})

        return start(strategy, grid, 4, evaluate_fn=evaluate)

    whole = run(tmp_path / "whole", dies=False)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", dies=True)
    np.testing.assert_array_equal(run(tmp_path / "killed", dies=False)["w"], whole["w"])
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_renamed_node_may_join_once_its_old_name_has_left(tmp_path: Path) -> None:
    strategy = FedSteer(folder=str(tmp_path))
    start(strategy, world(1, 2), 1)
    renamed = FakeGrid({11: drifting(7), 12: drifting(2)})
    start(strategy, renamed, 2)
    assert "client-7" not in members(strategy)
    strategy.leave([1])
    start(strategy, renamed, 3)
    assert members(strategy) == {"client-2", "client-7"}


def test_nameless_nodes_and_keys_can_leave() -> None:
    nameless = FedSteer()
    start(nameless, FakeGrid({11: drifting(1, report=False), 12: drifting(2)}), 1)
    nameless.leave(["node-11"])
    assert members(nameless) == {"client-2"}
    keyed = FedSteer(authenticated=True)
    start(keyed, FakeGrid({11: drifting(1), 12: drifting(2)}, {11: b"one", 12: b"two"}), 1)
    keyed.leave([key_name(b"one")])
    assert members(keyed) == {key_name(b"two")}


def test_the_time_between_two_starts_is_not_counted_twice(tmp_path: Path) -> None:
    strategy = FedSteer(folder=str(tmp_path))

    def slow(number: int, record: ArrayRecord) -> None:
        records = strategy.run.store.records
        assert records is not None
        records._began -= 1000.0 if number == 0 else 0.0  # as if that had taken so long

    start(strategy, world(1), 1, evaluate_fn=slow)
    start(strategy, world(1), 2, evaluate_fn=slow)
    assert 1000 <= read_json(tmp_path / "result.json")["seconds"] < 1900


def test_a_client_that_left_a_known_population_may_return(tmp_path: Path) -> None:
    known = {client: 10.0 + client for client in range(4)}
    strategy = FedSteer(folder=str(tmp_path), population=known)
    grid = FakeGrid({100 + client: drifting(client) for client in range(4)})
    strategy.start(grid, arrays(**INITIAL), num_rounds=2)
    strategy.leave([1])
    strategy.start(grid, arrays(**INITIAL), num_rounds=4)
    events = [
        (row["round"], row["event"])
        for row in Run(tmp_path).rows("clients")
        if row["client"] == "client-1"
    ]
    assert events == [(1, "fresh"), (2, "fresh"), (3, "fresh"), (4, "fresh")]
    assert sum(strategy.run.state.clients.sizes.values()) == sum(known.values())


@pytest.mark.parametrize("population", [None, {c: 10 + c for c in range(1, 6)}])
def test_a_client_that_fell_silent_can_leave_for_good(population: Any, tmp_path: Path) -> None:
    """Its identity goes too: another node may take its id."""

    def quiet(message: Any) -> Any:
        return None if message.content["config"]["server-round"] > 10 else drifting(2)(message)

    strategy = FedSteer(folder=str(tmp_path), fraction_evaluate=0.0, population=population)
    others = {10 + client: drifting(client) for client in (1, 3, 4, 5)}
    start(strategy, FakeGrid(others | {12: quiet}), 130)
    assert "client-2" not in members(strategy)
    strategy.leave([2])
    assert "client-2" not in strategy.run.identities.names.values()
    assert strategy.run.state.clients.silent == []
