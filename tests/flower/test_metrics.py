"""Metrics are claims: what is impossible is left out and counted, and nobody weighs too much."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict

from fedsteer.flower import FedSteer
from fedsteer.flower.metrics import weighted_metrics
from fedsteer.records import Run
from tests.flower.fake import Answer, FakeGrid, arrays, drifting

INITIAL = {"w": np.zeros(5, np.float32)}
HUGE = pytest.param(10**400, id="10^400")
IMPOSSIBLE = [math.nan, math.inf, -math.inf, 42.0, -0.1, HUGE, [-(10**400)]]


def claiming(points: float, **metrics: Any) -> Answer:
    """An honest update, but these metrics, in training and in evaluation."""
    honest = drifting(9)

    def answer(message: Message) -> Message:
        reply = honest(message)
        assert reply is not None
        reply.content["metrics"] = MetricRecord(
            {"num-examples": points, "partition-id": 9, **metrics}
        )
        return reply

    return answer


def started(hostile: Answer, folder: Path, rounds: int = 2) -> tuple[Any, list[dict[str, Any]]]:
    answers = {client: drifting(client) for client in (1, 2, 3)}
    strategy = FedSteer(folder=str(folder))
    result = strategy.start(FakeGrid(answers | {9: hostile}), arrays(**INITIAL), rounds)
    return result, Run(folder).rows("rounds")


@pytest.mark.parametrize("value", IMPOSSIBLE)
@pytest.mark.parametrize("points", [10.0, 1e15])
def test_an_impossible_accuracy_is_left_out(value: Any, points: float, tmp_path: Path) -> None:
    _, rows = started(claiming(points, eval_acc=value, eval_loss=1.0), tmp_path)
    for row in rows:
        assert row["accuracy"] == 0.5 and row["loss"] == pytest.approx(1.0)
        assert row["metrics_left_out"] == 2  # once in training, once in evaluation


@pytest.mark.parametrize("points", [0.0, -1.0, math.nan, 1e300, HUGE])
def test_impossible_data_points_are_left_out(points: float, tmp_path: Path) -> None:
    _, rows = started(claiming(points, eval_acc=1.0, eval_loss=0.0, train_loss=0.0), tmp_path)
    assert [row["accuracy"] for row in rows] == [0.5, 0.5]
    assert [row["metrics_left_out"] for row in rows] == [1, 1]  # in training it failed before


def test_a_huge_number_of_points_weighs_ten_times_the_usual(tmp_path: Path) -> None:
    _, rows = started(claiming(1e15, eval_acc=1.0, eval_loss=1.0), tmp_path)
    assert rows[0]["accuracy"] == pytest.approx((0.5 * 36 + 1.0 * 120) / 156)
    assert rows[0]["metrics_left_out"] == 0


def test_no_single_client_removes_a_metric_or_adds_one(tmp_path: Path) -> None:
    result, rows = started(claiming(10, invented=0.5, eval_loss=[1.0, 2.0]), tmp_path)
    assert set(result.evaluate_metrics_clientapp[1]) == {"eval_acc", "eval_loss"}
    assert rows[0]["loss"] == pytest.approx(1.0)


def test_losses_that_are_none_do_not_reach_the_records(tmp_path: Path) -> None:
    for place, loss in enumerate((math.nan, math.inf, 1e300)):
        _, rows = started(claiming(10, train_loss=loss), tmp_path / str(place), rounds=1)
        assert rows[0]["train_loss"] == pytest.approx(2.0)
        assert rows[0]["training"]["train_loss"] == pytest.approx((11 + 24 + 39) / 36)


def test_honest_clients_of_all_sizes_count_as_they_say() -> None:
    points, losses = np.array([10.0, 20, 40, 90, 200]), np.array([1.0, 5, 2, 3, 4])
    told = [
        RecordDict({"m": MetricRecord({"num-examples": n, "loss": x})})
        for n, x in zip(points.tolist(), losses.tolist(), strict=True)
    ]
    metrics, odd = weighted_metrics(told, "num-examples")
    assert metrics["loss"] == pytest.approx(np.average(losses, weights=points)) and not odd


def test_an_evaluation_of_nan_is_never_the_best_nor_ends_a_resumed_run(tmp_path: Path) -> None:
    """nan is not below any number, and null in the records is none at all."""
    found = iter([math.nan, math.nan, 0.3, math.nan, 0.4])

    def evaluate(number: int, record: Any) -> MetricRecord:
        return MetricRecord({"accuracy": next(found)})

    grid = FakeGrid({1: drifting(1)})
    for rounds, best in ((2, 0.3), (4, 0.4)):
        strategy = FedSteer(folder=str(tmp_path), fraction_evaluate=0.0)
        strategy.start(grid, arrays(**INITIAL), rounds, evaluate_fn=evaluate)
        assert strategy.run.store.best == (True, best)
    assert (tmp_path / "best.safetensors").exists()
