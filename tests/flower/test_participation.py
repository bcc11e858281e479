"""Real participation: nodes that are online are asked, and no reply can stop a round."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as PlainFedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedsteer import ConfigurationError, RoundRefused
from fedsteer.flower import FedAvg, FedSteer, FedVARP, Scaffold
from fedsteer.flower.metrics import weighted_metrics
from fedsteer.flower.replies import tidy
from fedsteer.records import Run
from fedsteer.records.rows import headline
from tests.files import read_json
from tests.flower.fake import (
    FakeGrid,
    arrays,
    drifting,
    failing,
    late,
    reply_with,
    unavailable,
    values,
)

INITIAL = {"w": np.zeros(5, np.float32), "n": np.array(0)}


def bad(**changes: Any) -> Any:
    """A client that answers with these arrays instead of its own."""

    def answer(message: Message) -> Message:
        good = {"w": np.ones(5, np.float32), "n": np.array(1)} | changes
        kept = {name: value for name, value in good.items() if value is not None}
        return reply_with(message, arrays(**kept), 10, 9)

    return answer


def damaged(message: Message) -> Message:
    broken = Array("float32", (5,), "numpy.ndarray", b"not an array at all")
    return reply_with(message, ArrayRecord({"w": broken, "n": Array(np.array(1))}), 10, 9)


def without_points(message: Message) -> Message:
    return reply_with(message, arrays(**INITIAL), None, 9)


def with_points(points: float) -> Any:
    return lambda message: reply_with(message, arrays(**INITIAL), points, 9)


def from_round(number: int) -> Any:
    version = {"model-version": number}
    return lambda message: reply_with(message, arrays(**INITIAL), 10, 9, **version)


def empty(message: Message) -> Message:
    return Message(RecordDict(), reply_to=message)


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (failing, "out of battery"),
        (unavailable, "out of battery"),
        (late, "did not answer in time"),
        (empty, "0 array records"),
        (damaged, "malformed"),
        (without_points, "num-examples"),
        (with_points(-3), "num-examples"),
        (with_points(float("nan")), "num-examples"),
        (bad(w=np.ones(4, np.float32)), "shape"),
        (bad(w=None), "lacks the array 'w'"),
        (bad(more=np.ones(1)), "extra array 'more'"),
        (bad(w=np.array(["a"] * 5)), "type"),
        (bad(w=np.full(5, np.nan, np.float32)), "non-finite"),
        (bad(w=np.full(5, 1e300)), "non-finite"),
        (bad(n=np.array(np.inf)), "not finite"),
        (bad(n=np.array(1e30)), "not finite in its type"),
        (bad(w=np.ones(5, np.int64)), "type int64, not <f4"),
        (from_round(7), "from the model of round 7, not"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_an_unusable_reply_is_recorded_and_left_out(answer: Any, word: str, tmp_path: Path) -> None:
    def run(grid: FakeGrid, folder: Path) -> dict[str, np.ndarray]:
        strategy = FedSteer(folder=str(folder), fraction_evaluate=0.0)
        return values(strategy.start(grid, arrays(**INITIAL), num_rounds=2).arrays)

    with_it = run(FakeGrid({11: drifting(1), 12: drifting(2), 99: answer}), tmp_path / "with")
    without = run(FakeGrid({11: drifting(1), 12: drifting(2)}), tmp_path / "without")
    for name, array in without.items():
        np.testing.assert_array_equal(with_it[name], array)
    rows = [row for row in Run(tmp_path / "with").rows("clients") if "reason" in row]
    assert [row["round"] for row in rows] == [1, 2]
    assert all(word in row["reason"] for row in rows), rows
    row = Run(tmp_path / "with").rounds[0]
    assert row["active"] == 2 and row["failed"] + row["dropped"] == 1 and row["asked"] == 3


def test_a_round_without_replies_keeps_the_model(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    grid = FakeGrid({11: late, 12: failing, 13: bad(w=np.full(5, np.nan, np.float32))})
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid, arrays(**INITIAL), num_rounds=3)
    np.testing.assert_array_equal(values(result.arrays)["w"], INITIAL["w"])
    assert strategy.run.number == 3
    assert result.train_metrics_clientapp[2]["fedsteer-failed"] == 2
    warning = "no reply in 3 rounds could be used: the model is the one that it began with"
    assert warning in caplog.text
    caplog.clear()
    grid.answers[11] = drifting(1)
    strategy.start(grid, arrays(**INITIAL), num_rounds=4)
    grid.answers[11] = late
    strategy.leave(["1"])
    strategy.start(grid, arrays(**INITIAL), num_rounds=5)
    assert "could be used" not in caplog.text


def test_a_warm_up_without_replies_is_mentioned_but_not_one_that_ended(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    known = {"population": {1: 11, 2: 12}, "preset": "paper", "core_size": 1, "cycles": 1}
    options: dict[str, Any] = {"fraction_evaluate": 0.0, "folder": str(tmp_path)} | known
    grid = FakeGrid({11: late, 12: late})
    FedSteer(**options).start(grid, arrays(**INITIAL), num_rounds=2)
    assert "no reply in 2 rounds could be used" in caplog.text
    caplog.clear()
    grid.answers |= {11: drifting(1), 12: drifting(2)}
    FedSteer(**options).start(grid, arrays(**INITIAL), num_rounds=3)
    grid.answers |= {11: late, 12: late}
    FedSteer(**options).start(grid, arrays(**INITIAL), num_rounds=5)
    assert "could be used" not in caplog.text


def test_memory_moves_the_model_in_a_round_without_replies_as_in_the_simulator() -> None:
    grid = FakeGrid({11: drifting(1)})
    strategy = FedVARP(fraction_evaluate=0.0, preset="paper", population={1: 11})
    first = values(strategy.start(grid, arrays(**INITIAL), num_rounds=1).arrays)
    grid.answers[11] = late
    second = values(strategy.start(grid, arrays(**INITIAL), num_rounds=2).arrays)
    np.testing.assert_allclose(second["w"], 2 * first["w"], rtol=1e-6)


def test_absent_nodes_are_not_waited_for_and_rounds_have_a_time_limit() -> None:
    grid = FakeGrid({11: drifting(1), 12: drifting(2)}, offline={12})
    began = time.monotonic()
    FedSteer(min_train_nodes=2).start(grid, arrays(**INITIAL), num_rounds=3, timeout=17)
    assert time.monotonic() - began < 5
    assert grid.asked == [[11]] * 6
    assert set(grid.timeouts) == {17}


def test_messages_expire_with_their_round() -> None:
    seen = []

    def client(message: Message) -> Message | None:
        seen.append(message.metadata.ttl)
        return drifting(1)(message)

    FedSteer().start(FakeGrid({11: client}), arrays(**INITIAL), num_rounds=1, timeout=17)
    assert seen == [17.0, 17.0]
    FedSteer().start(FakeGrid({11: client}), arrays(**INITIAL), num_rounds=1, timeout=None)
    assert len(seen) == 4 and min(seen[2:]) > 3600  # Flower's own limit


def test_too_few_registrations_are_an_error() -> None:
    strategy = FedSteer(min_available_nodes=3, registration_timeout=0.1)
    with pytest.raises(ConfigurationError, match=r"1 of 3 nodes had registered after 0\.1 seconds"):
        strategy.start(FakeGrid({11: drifting(1)}), arrays(**INITIAL))


def test_registration_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid({11: drifting(1)}, offline={11})
    monkeypatch.setattr("fedsteer.flower.asking.time.sleep", lambda seconds: grid.offline.clear())
    FedSteer(registration_timeout=60).start(grid, arrays(**INITIAL), num_rounds=1)
    assert grid.asked == [[11], [11]]


def test_a_round_waits_while_no_node_is_online(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid({11: drifting(1)})
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            grid.offline.clear()

    monkeypatch.setattr("fedsteer.flower.asking.time.sleep", nap)
    grid.before = lambda sends: grid.offline.add(11) if sends == 1 else None
    FedSteer().start(grid, arrays(**INITIAL), num_rounds=2, timeout=600)
    assert len(naps) == 3 and grid.asked == [[11], [11], [11], [11]]


def test_a_round_without_nodes_takes_its_time_limit() -> None:
    grid = FakeGrid({11: drifting(1)})
    grid.before = lambda sends: grid.offline.add(11)
    began = time.monotonic()
    strategy = FedSteer(fraction_evaluate=0.0)
    strategy.start(grid, arrays(**INITIAL), num_rounds=3, timeout=0.2)
    assert strategy.run.number == 3 and 0.3 < time.monotonic() - began < 5


def test_clients_without_a_known_probability_are_dropped(tmp_path: Path) -> None:
    grid = FakeGrid({c: drifting(c) for c in (1, 2, 3)})
    known = {1: 0.25, "client-2": 0.5}
    strategy = FedSteer(known_probabilities=known, folder=str(tmp_path), fraction_evaluate=0.0)
    strategy.start(grid, arrays(**INITIAL), num_rounds=1)
    rows = {row["client"]: row for row in Run(tmp_path).rows("clients")}
    assert rows["client-1"]["probability"] == 0.25 and rows["client-2"]["probability"] == 0.5
    assert rows["client-3"]["event"] == "dropped" and "probabilities" in rows["client-3"]["reason"]


def test_probabilities_are_estimated_by_default(tmp_path: Path) -> None:
    grid = FakeGrid({1: drifting(1), 2: drifting(2)})
    grid.before = lambda sends: grid.offline.symmetric_difference_update({2})
    strategy = FedSteer(folder=str(tmp_path), fraction_evaluate=0.0)
    strategy.start(grid, arrays(**INITIAL), num_rounds=11)
    rows = [row for row in Run(tmp_path).rows("clients") if row["round"] == 11]
    found = {row["client"]: row["probability"] for row in rows}
    # Ten rounds of each client's own and as many of what is common to both, which is 3/4.
    assert 0.75 < found["client-1"] < 1.0 and 0.5 < found["client-2"] < 0.75


def test_replies_cannot_change_a_known_population(tmp_path: Path) -> None:
    grid = FakeGrid({1: drifting(1, points=1e12), 2: drifting(2, points=10)})
    strategy = FedSteer(population={1: 10, 2: 30}, folder=str(tmp_path), fraction_evaluate=0.0)
    strategy.start(grid, arrays(**INITIAL), num_rounds=1)
    weights = {row["client"]: row["weight"] for row in Run(tmp_path).rows("clients")}
    assert weights == {"client-1": 0.25, "client-2": 0.75}


def test_all_reachable_nodes_can_be_asked_to_refresh(tmp_path: Path) -> None:
    grid = FakeGrid({c: drifting(c) for c in range(1, 6)})
    strategy = FedSteer(
        fraction_train=0.2, refresh_all_every=2, folder=str(tmp_path), fraction_evaluate=0.0
    )
    strategy.start(grid, arrays(**INITIAL), num_rounds=4)
    assert [len(nodes) for nodes in grid.asked] == [1, 5, 1, 5]
    events = [row["event"] for row in Run(tmp_path).rows("clients") if row["round"] == 4]
    assert sorted(events) == ["fresh"] + ["refresh"] * 4


def test_scaffold_needs_the_number_of_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    strategy = Scaffold(folder=str(tmp_path), fraction_evaluate=0.0)
    strategy.start(FakeGrid({1: drifting(1)}), arrays(**INITIAL), num_rounds=1)
    (row,) = Run(tmp_path).rows("clients")
    assert row["event"] == "dropped" and "steps" in row["reason"]
    (said,) = [r.getMessage() for r in caplog.records if "was dropped" in r.getMessage()]
    assert "client-1" in said and "steps" in said


def huge(client: int) -> Any:
    values = {"w": np.full(5, -2e38, np.float32), "n": np.array(1)}
    return lambda message: reply_with(message, arrays(**values), 10, client)


def test_a_round_that_the_rule_refuses_keeps_the_model(tmp_path: Path) -> None:
    grid = FakeGrid({c: huge(c) for c in range(3)})
    strategy = FedAvg(
        folder=str(tmp_path), fraction_evaluate=0.0, known_probabilities={c: 1e-3 for c in range(3)}
    )
    result = strategy.start(grid, arrays(**INITIAL), num_rounds=2)
    assert np.isfinite(values(result.arrays)["w"]).all()
    run = Run(tmp_path)
    assert len(run.rounds) == 2
    assert {row["event"] for row in run.rows("clients")} <= {"failed", "dropped", "fresh"}


@pytest.mark.parametrize("warm_up", [False, True])
def test_a_refused_round_counts_what_was_sent(
    warm_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise RoundRefused("not today")

    options: dict[str, Any] = {"folder": str(tmp_path), "fraction_evaluate": 0.0}
    if warm_up:
        options |= {"preset": "paper", "population": {1: 11, 2: 12}, "core_size": 1}
    strategy = FedSteer(**options)
    monkeypatch.setattr(strategy.rule, "step", refuse)
    grid = FakeGrid({1: drifting(1), 2: drifting(2)})
    strategy.run.identities.names = {1: "client-1", 2: "client-2"}
    strategy.start(grid, arrays(**INITIAL), num_rounds=1)
    (row,) = Run(tmp_path).rounds
    assert row["phase"] == ("warm-up" if warm_up else "train")
    assert row["training_round"] == (0 if warm_up else 1)
    assert row["asked"] == row["failed"] == 2 and row["bytes_up"] > 40 and row["bytes_down"] > 40
    assert row["refreshed"] == 0 and row["collected"] == 2 * warm_up
    assert row["active"] == row["fresh"] == row["dropped"] == row["weight_sum"] == 0
    result = read_json(tmp_path / "result.json")
    assert result["uploads"] == 2 and result["warm_up_uploads"] == 2 * warm_up
    assert result["warm_up_rounds"] == int(warm_up)
    assert all(result[key] == row[key] for key in ("bytes_up", "bytes_down", "server_bytes"))


def test_a_refused_round_has_all_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = FedSteer(
        fraction_train=0.5, refresh_all_every=1, folder=str(tmp_path), fraction_evaluate=0.0
    )
    grid = FakeGrid({c: drifting(c) for c in range(1, 5)})
    strategy.start(grid, arrays(**INITIAL), num_rounds=1)

    def refuse(*arguments: Any) -> None:
        raise RoundRefused("not today")

    monkeypatch.setattr(strategy.rule, "step", refuse)
    strategy.start(grid, arrays(**INITIAL), num_rounds=2)
    used, refused = Run(tmp_path).rounds
    assert set(used) - set(refused) <= {"variance", "condition", "training"}  # which it lacks
    assert set(refused) <= set(used)
    assert used["refreshed"] == refused["refreshed"] == 2 and refused["asked"] == 4


def test_metrics_are_averaged_as_flower_does() -> None:
    contents = [
        RecordDict({"m": MetricRecord({"num-examples": n, "loss": x, "per-class": [x, 2 * x]})})
        for n, x in ((10, 1.0), (30, 5.0), (5, 2.0))
    ]
    (ours, odd), theirs = (
        f(contents, "num-examples") for f in (weighted_metrics, aggregate_metricrecords)
    )
    assert not odd
    assert set(ours) == set(theirs)
    for key in theirs:
        np.testing.assert_allclose(ours[key], theirs[key])
    other = RecordDict({"m": MetricRecord({"num-examples": 1, "other": 1.0})})
    assert weighted_metrics([*contents, other], "num-examples")[0] == ours
    assert not weighted_metrics([contents[0], other], "num-examples")[0]


def test_diagnostics_are_added_to_the_clients_metrics() -> None:
    grid = FakeGrid({1: drifting(1), 2: drifting(2), 3: late})
    result = FedSteer().start(grid, arrays(**INITIAL), num_rounds=1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["train_loss"] == pytest.approx((11 * 1 + 12 * 2) / 23)
    assert metrics["fedsteer-active"] == 2 and metrics["fedsteer-failed"] == 1
    assert "fedsteer-variance" in metrics and "partition-id" not in metrics
    assert result.evaluate_metrics_clientapp[1]["eval_acc"] == 0.5


def test_a_users_own_metric_functions_are_used() -> None:
    def count(contents: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord({"how-many": len(contents)})

    grid = FakeGrid({1: drifting(1), 2: drifting(2)})
    strategy = FedSteer(train_metrics_aggr_fn=count, evaluate_metrics_aggr_fn=count)
    result = strategy.start(grid, arrays(**INITIAL), num_rounds=1)
    assert result.train_metrics_clientapp[1]["how-many"] == 2
    assert result.evaluate_metrics_clientapp[1]["how-many"] == 2


def test_a_run_of_plain_fedavg_can_be_taken_over() -> None:
    grid = FakeGrid({1: drifting(1), 2: drifting(2)})
    plain = PlainFedAvg().start(grid, arrays(w=np.zeros(5, np.float32)), num_rounds=3)
    before = values(plain.arrays)["w"]
    after = values(FedSteer().start(grid, plain.arrays, num_rounds=3).arrays)["w"]
    goal = np.average([np.cos(np.arange(5) + c) for c in (1, 2)], axis=0, weights=[11, 12])
    assert 0 < np.abs(after - goal).max() < np.abs(before - goal).max()


def test_reasons_are_whole_in_the_records_and_one_line_in_the_log() -> None:
    trace = tidy("Traceback:\n  File x\n\x1b[36mray\x1b[39m\nValueError: no disk\n\n")
    assert trace == "Traceback:\n  File x\nray\nValueError: no disk"
    assert headline(trace) == "ValueError: no disk"
    raised = "<class 'torch.cuda.OutOfMemoryError'>:<'Out of memory.\n\ttried to allocate'>"
    assert tidy(raised) == "OutOfMemoryError: Out of memory.\n\ttried to allocate"
    assert headline(tidy(raised)) == "OutOfMemoryError: Out of memory."
    wrapped = (
        "<class 'flwr.clientapp.client_app.ClientAppException'>:"
        "<'\nException ClientAppException occurred. Message: no such file'>"
    )
    assert tidy(wrapped) == "ClientAppException: no such file"
    assert tidy("") == tidy(None) == tidy(" \n") == headline("no reason given")
    assert len(tidy("x" * 5000)) == 2000 and len(headline("x" * 5000)) == 200


def test_a_stranger_to_a_given_population_is_left_out(tmp_path: Path) -> None:
    """It may report any size."""
    strategy = FedVARP(preset="paper", population={0: 10, 1: 11}, folder=str(tmp_path))
    grid = FakeGrid({100: drifting(0), 101: drifting(1), 102: drifting(9)})
    strategy.start(grid, arrays(w=np.zeros(3, np.float32)), num_rounds=2)
    rows = Run(tmp_path).rows("clients")
    assert {row["client"] for row in rows if "weight" in row} == {"client-0", "client-1"}
    reasons = {row.get("reason", "") for row in rows if row["client"] == "client-9"}
    assert reasons and all("is unknown" in reason for reason in reasons)
