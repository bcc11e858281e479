"""Coordinates belong to a client, whatever its node; no client can claim another's."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedsteer.flower import FedAWE, FedSteer, Scaffold, report_identity
from fedsteer.flower.identity import (
    Identities,
    client_name,
    key_name,
    reported_id,
)
from fedsteer.records import Run
from tests.flower.fake import FakeGrid, arrays, drifting, failing, reply_with

INITIAL = {"w": np.zeros(5, np.float32)}


def clients_of(folder: Path, number: int) -> dict[str, str]:
    """client -> event, of one round."""
    return {
        row["client"]: row["event"] for row in Run(folder).rows("clients") if row["round"] == number
    }


def reasons_of(folder: Path, number: int) -> dict[str, str]:
    rows = Run(folder).rows("clients")
    return {
        row["client"]: row["reason"] for row in rows if row["round"] == number and "reason" in row
    }


def test_a_restarted_node_keeps_its_coordinates_by_its_reported_id(tmp_path: Path) -> None:
    grid = FakeGrid({11: drifting(1), 12: drifting(2)})
    strategy = FedSteer(core_size=2, folder=str(tmp_path))
    strategy.start(grid, arrays(**INITIAL), num_rounds=2)
    grid.answers[77] = grid.answers.pop(12)
    again = FedSteer(core_size=2, folder=str(tmp_path))
    again.start(grid, arrays(**INITIAL), num_rounds=5)
    assert clients_of(tmp_path, 5) == {"client-1": "fresh", "client-2": "fresh"}
    late = [row for row in Run(tmp_path).rows("clients") if row["client"] == "client-2"]
    assert [row.get("staleness") for row in late] == [None, 1, 1, 1, 1]
    assert again.rule.coordinates(again.run.state, ["client-2"]) is not None


def test_keys_come_before_reported_ids_and_node_ids(tmp_path: Path) -> None:
    keys = {11: b"key of one", 12: b"key of two"}
    grid = FakeGrid({11: drifting(1), 12: drifting(2)}, keys)
    strategy = FedSteer(authenticated=True, folder=str(tmp_path))
    strategy.start(grid, arrays(**INITIAL), num_rounds=1)
    assert set(clients_of(tmp_path, 1)) == {key_name(key) for key in keys.values()}
    # A SuperLink without its database gives new node ids to old keys.
    again = FakeGrid({21: drifting(1), 22: drifting(2)}, {21: keys[11], 22: keys[12]})
    strategy = FedSteer(authenticated=True, folder=str(tmp_path))
    strategy.start(again, arrays(**INITIAL), num_rounds=2)
    assert set(clients_of(tmp_path, 2)) == {key_name(key) for key in keys.values()}
    assert all(row["staleness"] == 1 for row in Run(tmp_path).rows("clients") if row["round"] == 2)


def test_without_a_reported_id_the_node_id_is_the_client(tmp_path: Path) -> None:
    grid = FakeGrid({11: drifting(1, report=False)})
    FedSteer(folder=str(tmp_path)).start(grid, arrays(**INITIAL), num_rounds=1)
    assert clients_of(tmp_path, 1) == {"node-11": "fresh"}


def test_two_claims_to_one_id_in_a_round_are_both_refused(tmp_path: Path) -> None:
    grid = FakeGrid({11: drifting(1), 12: drifting(2), 13: drifting(1, points=9)})
    strategy = FedSteer(folder=str(tmp_path))
    strategy.start(grid, arrays(**INITIAL), num_rounds=1)
    assert clients_of(tmp_path, 1) == {
        "client-2": "fresh", "node-11": "failed", "node-13": "failed"
    }  # fmt: skip
    assert "claimed by 2 nodes" in reasons_of(tmp_path, 1)["node-13"]


def test_a_copied_configuration_locks_no_authenticated_site_out(tmp_path: Path) -> None:
    """Under keys a reported id means nothing: nobody is refused, and memories stay apart."""
    keys = {11: b"key of one", 12: b"key of two"}
    grid = FakeGrid({11: drifting(1), 12: drifting(1, target=3.0)}, keys)
    strategy = FedSteer(authenticated=True, folder=str(tmp_path))
    strategy.start(grid, arrays(**INITIAL), num_rounds=1)
    one, two = key_name(keys[11]), key_name(keys[12])
    assert clients_of(tmp_path, 1) == {one: "fresh", two: "fresh"}
    before = strategy.rule.coordinates(strategy.run.state, [one])
    grid.offline = {11}
    again = FedSteer(authenticated=True, folder=str(tmp_path))
    again.start(grid, arrays(**INITIAL), num_rounds=2)
    assert clients_of(tmp_path, 2) == {two: "fresh"}
    after = again.rule.coordinates(again.run.state, [one])
    assert before is not None and after is not None
    np.testing.assert_array_equal(before, after)


def test_a_node_without_a_key_is_refused_if_nodes_are_authenticated(tmp_path: Path) -> None:
    grid = FakeGrid({11: drifting(1), 12: drifting(2)}, {11: b"key"})
    strategy = FedSteer(authenticated=True, folder=str(tmp_path))
    strategy.start(grid, arrays(**INITIAL), num_rounds=1)
    assert clients_of(tmp_path, 1) == {key_name(b"key"): "fresh", "node-12": "failed"}


def test_evaluations_of_nodes_without_a_key_do_not_count() -> None:
    def client(number: int, accuracy: float, points: float) -> Any:
        def answer(message: Any) -> Any:
            if message.metadata.message_type.startswith("evaluate"):
                return reply_with(message, None, points, number, acc=accuracy)
            return drifting(number)(message)

        return answer

    answers = {11: client(1, 0.9, 10), 12: client(2, 0.9, 10), 13: client(3, 0.0, 1e9)}
    grid = FakeGrid(answers, keys={11: b"a", 12: b"b"})
    result = FedSteer(authenticated=True).start(grid, arrays(**INITIAL), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["acc"] == pytest.approx(0.9)
    endless = FakeGrid({11: client(1, 0.9, 10), 12: client(2, 0.1, 1e308)})
    result = FedSteer().start(endless, arrays(**INITIAL), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["acc"] == pytest.approx(0.9)


@pytest.mark.parametrize("population", [None, {0: 10, 1: 11}])
def test_scaffold_uses_first_visits_of_unknown_nodes(population: Any, tmp_path: Path) -> None:
    """An unknown node receives what a client without a c_i would receive."""

    def client(number: int) -> Any:
        def answer(message: Any) -> Any:
            if number == 1 and message.content["config"]["server-round"] == 1:
                return failing(message)
            reply = drifting(number)(message)
            reply.content["metrics"]["num-steps"] = 1  # type: ignore[union-attr,index]
            return reply

        return answer

    strategy = Scaffold(folder=str(tmp_path), population=population, fraction_evaluate=0.0)
    strategy.start(FakeGrid({1: client(0), 2: client(1)}), arrays(**INITIAL), num_rounds=2)
    rows = [row for row in Run(tmp_path).rows("clients") if row["round"] == 2]
    assert [(row["client"], row["event"]) for row in rows] == [
        ("client-0", "fresh"),
        ("client-1", "fresh"),
    ]


def test_an_id_cannot_be_taken_while_its_node_is_online_nor_be_changed(tmp_path: Path) -> None:
    grid = FakeGrid({11: drifting(1), 12: drifting(2)})
    strategy = FedSteer(folder=str(tmp_path))
    strategy.start(grid, arrays(**INITIAL), num_rounds=1)
    slow = FakeGrid({11: lambda message: None, 12: drifting(1), 13: drifting(1)})
    strategy = FedSteer(folder=str(tmp_path))
    strategy.start(slow, arrays(**INITIAL), num_rounds=2)
    assert set(clients_of(tmp_path, 2).values()) == {"failed"}
    assert "was client-2 before" in reasons_of(tmp_path, 2)["client-2"]
    assert "still online" in reasons_of(tmp_path, 2)["node-13"]
    # Once the old node is gone, the client may come back from a new one.
    slow.offline = {11, 12}
    strategy = FedSteer(folder=str(tmp_path))
    strategy.start(slow, arrays(**INITIAL), num_rounds=3)
    assert clients_of(tmp_path, 3) == {"client-1": "fresh"}


def test_a_reply_on_behalf_of_another_node_is_left_out(tmp_path: Path) -> None:
    def forged(message: Message) -> Message:
        reply = drifting(3)(message)
        assert reply is not None
        reply.metadata.__dict__["_src_node_id"] = 12
        return reply

    grid = FakeGrid({11: forged, 12: drifting(2)})
    strategy = FedSteer(folder=str(tmp_path), fraction_evaluate=0.0)
    strategy.start(grid, arrays(**INITIAL), num_rounds=1)
    assert clients_of(tmp_path, 1)["client-2"] == "fresh"
    assert "client-3" not in clients_of(tmp_path, 1)


@pytest.mark.parametrize("strategy_type", [Scaffold, FedAWE])
def test_updates_from_arrays_made_for_another_client_are_left_out(
    strategy_type: Any, tmp_path: Path
) -> None:
    def client(number: int) -> Any:
        inner = drifting(number)

        def answer(message: Message) -> Message:
            reply = inner(message)
            assert reply is not None
            reply.content["metrics"]["num-steps"] = 2  # type: ignore[index]
            return reply

        return answer

    grid = FakeGrid({11: client(1), 12: client(2)})
    strategy_type(folder=str(tmp_path)).start(grid, arrays(**INITIAL), num_rounds=2)
    grid.answers[77] = grid.answers.pop(12)  # client 2 restarts as node 77
    strategy_type(folder=str(tmp_path)).start(grid, arrays(**INITIAL), num_rounds=4)
    assert clients_of(tmp_path, 3) == {"client-1": "fresh", "client-2": "failed"}
    assert "was taken for node-77" in reasons_of(tmp_path, 3)["client-2"]
    assert clients_of(tmp_path, 4) == {"client-1": "fresh", "client-2": "fresh"}


def test_the_client_mod_reports_the_partition() -> None:
    message = Message(RecordDict(), 5, "train")
    context = Context(1, 5, {"partition-id": 3}, RecordDict(), {})
    reply = report_identity(
        message, context, lambda message, context: reply_with(message, arrays(**INITIAL))
    )
    content = reply.content
    assert reported_id({**content.config_records, **content.metric_records}) == "3"


def test_reported_ids_are_short_text_or_numbers() -> None:
    assert reported_id({"m": MetricRecord({"partition-id": 4.0})}) == "4"
    both = {"m": MetricRecord({"partition-id": 4}), "c": ConfigRecord({"client-id": "ward"})}
    assert reported_id(both) == "ward"
    assert reported_id({"m": MetricRecord({"partition-id": [1, 2]})}) is None
    with pytest.raises(ValueError, match="longer than"):
        reported_id({"c": ConfigRecord({"client-id": "x" * 1000})})


def named(name: str) -> Any:
    """A client that reports this id."""

    def answer(message: Message) -> Message:
        reply = drifting(1, report=False)(message)
        assert reply is not None
        reply.content["identity"] = ConfigRecord({"client-id": name})
        return reply

    return answer


def test_a_reported_id_and_an_option_mean_the_same_client(tmp_path: Path) -> None:
    for text in ("0", "client-0", "ward-7"):
        assert client_name(text, ("client-",)) == client_name(text)
    assert (
        client_name("key-ab", ("client-",)) == "client-key-ab"
    )  # a client cannot become a key by saying so
    grid = FakeGrid({11: named("client-0"), 12: named("1")})
    known = {"client-0": 0.5, 1: 0.25}
    strategy = FedSteer(known_probabilities=known, folder=str(tmp_path))
    strategy.start(grid, arrays(**INITIAL), num_rounds=1)
    assert clients_of(tmp_path, 1) == {"client-0": "fresh", "client-1": "fresh"}


def test_two_spellings_of_one_id_are_two_claims(tmp_path: Path) -> None:
    grid = FakeGrid({11: named("client-0"), 12: named("0")})
    FedSteer(folder=str(tmp_path)).start(grid, arrays(**INITIAL), num_rounds=1)
    assert set(clients_of(tmp_path, 1).values()) == {"failed"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"core_set": ["client-1", "wrad-2"]}, "1 of 2 in core_set (client-wrad-2)"),
        ({"known_probabilities": {1: 0.5, 2: 0.5, 9: 0.5}}, "known_probabilities (client-9)"),
        ({"population": {1: 10, 2: 10, 9: 10}}, "1 of 3 in population (client-9)"),
        ({"core_set": [1, 2]}, None),
    ],
)
def test_named_clients_that_never_answer_are_mentioned_once(
    options: dict[str, Any], said: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    grid = FakeGrid({11: drifting(1), 12: drifting(2)})
    FedSteer(**options).start(grid, arrays(**INITIAL), num_rounds=6)
    warnings = [r.getMessage() for r in caplog.records if "never answered" in r.getMessage()]
    assert len(warnings) == (said is not None)
    assert said is None or (said in warnings[0] and "client-1, client-2" in warnings[0])


def test_nameless_nodes_that_are_gone_are_mentioned_at_every_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new simulation all nodes have new ids, and the old ones still count as members."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)

    def hints(first: int, rounds: int) -> list[str]:
        caplog.clear()
        grid = FakeGrid({first + i: drifting(i, report=False) for i in range(2)})
        FedSteer(folder=tmp_path).start(grid, arrays(**INITIAL), num_rounds=rounds)
        return [r.getMessage() for r in caplog.records if "report no id" in r.getMessage()]

    (first,) = hints(11, 2)
    assert "not online" not in first
    (resumed,) = hints(21, 4)
    assert "2 from earlier rounds are not online (node-11, node-12)" in resumed
    assert "strategy.leave" in resumed


def test_identities_survive_a_checkpoint() -> None:
    identities = Identities()
    identities.meet({2**63 + 1: b"key"})
    identities.resolve({2**63 + 1: "a", 5: None}, {5})
    other = Identities()
    other.restore(identities.pack())
    assert other == identities
    assert other.expected(2**63 + 1) == "client-a" and other.expected(5) == "node-5"
