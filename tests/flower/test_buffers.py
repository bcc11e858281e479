"""Batch-norm statistics, counters and other averaged arrays: no single client moves them far."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsteer import ConfigurationError
from fedsteer.flower import FedAvg, FedSteer, Scaffold
from fedsteer.flower.buffers import TIMES, Buffers
from fedsteer.flower.model import GlobalModel
from fedsteer.records.checkpoint import read_checkpoint
from fedsteer.steering.usual import LATEST
from tests.flower.fake import Answer, FakeGrid, arrays, drifting, reply_with, values

FEATURES = 16
HUGE = [1e300, -1e300, 3e38, 1e9]


def statistics(client: int, number: int) -> np.ndarray:
    """Of a client with labels of its own: means differ from client to client, and less in time."""
    draw = np.random.default_rng([client, number])
    mean: np.ndarray = np.cos(np.arange(FEATURES) * (client + 1)) * (1 + client % 3)
    return mean + 0.1 * draw.normal(size=FEATURES)


def moved(buffers: Buffers, client: int, number: int, steps: int) -> np.ndarray:
    """torch's momentum: the more batches, the further."""
    kept = 0.9**steps
    found: np.ndarray = kept * buffers.arrays["mean"] + (1 - kept) * statistics(client, number)
    return found.astype(np.float32)


def start() -> Buffers:
    return Buffers({"mean": np.zeros(FEATURES, np.float32)})


def test_heterogeneous_honest_clients_count_as_they_are() -> None:
    """Label skew, one batch beside ten, one client or ten in a round: the plain mean."""
    buffers, draw = start(), np.random.default_rng(0)
    buffers.average([{"mean": moved(buffers, c, 0, 5)} for c in range(10)], [1.0] * 10)
    for number in range(1, 300):
        here = draw.choice(20, size=1 + number % 10, replace=False).tolist()
        sent = [moved(buffers, c, number, 1 if c % 4 else 10) for c in here]
        sizes = [10.0 + client for client in here]
        expected = np.average(sent, axis=0, weights=sizes)
        buffers.average([{"mean": one} for one in sent], sizes)
        np.testing.assert_allclose(buffers.arrays["mean"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", HUGE[2:])
@pytest.mark.parametrize("others", [0, 1, 2, 7])
@pytest.mark.parametrize("number", [0, 20])
def test_one_hostile_client_moves_nothing_far(number: int, others: int, wrong: float) -> None:
    """In the first round or later, alone or among others."""
    buffers = start()
    for earlier in range(number):
        buffers.average([{"mean": moved(buffers, c, earlier, 5)} for c in range(4)], [1.0] * 4)
    before = buffers.arrays["mean"].astype(np.float64)
    honest = [moved(buffers, client, number, 5) for client in range(others)]
    hostile = np.full(FEATURES, wrong, np.float32)
    usual = max([3.0, *(float(np.linalg.norm(one - before)) for one in honest)])
    buffers.average([{"mean": one} for one in [*honest, hostile]], [1.0] * (others + 1))
    reach = np.linalg.norm(buffers.arrays["mean"] - before)
    assert reach <= (TIMES / (others + 1) + 1) * usual * 1.001


def test_the_memory_of_distances_is_short_and_in_the_checkpoint() -> None:
    buffers = start()
    for number in range(40):
        buffers.average([{"mean": moved(buffers, c, number, 5)} for c in range(4)], [1.0] * 4)
    again = Buffers(dict(buffers.arrays))
    again.restore(buffers.pack())
    assert len(again.distances["mean"]) == LATEST
    wrong = [{"mean": np.full(FEATURES, 1e9, np.float32)}]
    for one in (buffers, again):
        one.average(wrong, [1.0])
    np.testing.assert_array_equal(again.arrays["mean"], buffers.arrays["mean"])


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint64, np.bool_, np.float16, np.float64])
def test_the_ends_of_a_type_do_not_wrap(kind: Any) -> None:
    low, high = (False, True) if kind is np.bool_ else (0, 0)
    if kind is not np.bool_:
        limits = np.finfo(kind) if np.dtype(kind).kind == "f" else np.iinfo(kind)
        low, high = limits.min, limits.max
    for end in (low, high):
        buffers = Buffers({"n": np.array([low, high], kind)})
        sent = [{"n": np.array([end, end], kind)}, {"n": np.array([end, low], kind)}]
        buffers.average(sent, [0.1, 0.2])
        found = buffers.arrays["n"]
        assert found.dtype == kind and np.isfinite(found).all()
        assert found[0] == end or kind in (np.float16, np.float64)
        assert low <= found[1] <= high


def test_unchanged_integers_stay_exact() -> None:
    old = {"seed": np.array(2**60 + 1), "table": np.array([2**64 - 1], np.uint64)}
    buffers = Buffers(dict(old))
    buffers.average([old, dict(old)], [1.0, 2.0])
    buffers.average([], [])
    assert all(np.array_equal(buffers.arrays[name], old[name]) for name in old)


INITIAL = {
    "w": np.zeros(4, np.float32),
    "n.running_mean": np.zeros(4, np.float32),
    "n.running_var": np.ones(4, np.float32),
    "n.num_batches_tracked": np.array(0),
}


def honest(client: int) -> Answer:
    def answer(message: Any) -> Any:
        sent = values(message.content["arrays"])
        back = {
            "w": sent["w"] + np.float32(0.1) * np.cos(np.arange(4, dtype=np.float32) + client),
            "n.running_mean": 0.9 * sent["n.running_mean"] + 0.1 * client,
            "n.running_var": 0.9 * sent["n.running_var"] + 0.1 * client,
            "n.num_batches_tracked": sent["n.num_batches_tracked"] + client,
        }
        back = {name: value.astype(INITIAL[name].dtype) for name, value in back.items()}
        return reply_with(message, arrays(**back), 10, client)

    return answer


def hostile(**changes: Any) -> Answer:
    """Honest weights, and these arrays; it also claims more data points than all others have."""

    def answer(message: Any) -> Any:
        named = values(honest(9)(message).content["arrays"]) | changes  # type: ignore[union-attr]
        return reply_with(message, arrays(**named), 1e15, 9)

    return answer


ATTACKS = [
    *({"n.running_mean": np.full(4, wrong)} for wrong in HUGE),
    *({"n.running_mean": np.full(4, wrong, np.float32)} for wrong in HUGE[2:]),
    {"n.running_mean": np.full(4, 1e9, np.longdouble)},
    {"n.running_var": np.full(4, -1.0, np.float32)},
    {"n.running_var": np.full(4, 3e38, np.float32)},
    {"n.num_batches_tracked": np.array(2**63 - 1)},
    {"n.num_batches_tracked": np.array(2.0**63)},
    {"n.num_batches_tracked": np.array(2**64 - 1, np.uint64)},
    {"n.num_batches_tracked": np.array(-5)},
]


@pytest.mark.parametrize("changes", ATTACKS, ids=str)
def test_no_reply_spoils_the_buffers_of_a_run(changes: dict[str, Any], tmp_path: Path) -> None:
    answers = {client: honest(client) for client in (1, 2, 3)}
    run = FedSteer(folder=str(tmp_path), fraction_evaluate=0.0)
    result = run.start(FakeGrid(answers | {9: hostile(**changes)}), arrays(**INITIAL), 12)
    found = values(result.arrays)
    assert found["n.running_mean"].min() >= 0 and found["n.running_mean"].max() < 10
    assert found["n.running_var"].min() > 0.1 and found["n.running_var"].max() < 20
    assert 12 <= found["n.num_batches_tracked"] < 200
    saved, _ = read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert all(np.isfinite(array).all() for array in saved.values())


def test_a_model_that_is_not_finite_is_refused_at_the_start() -> None:
    for name, value in (("w", np.nan), ("n.running_mean", np.inf)):
        spoilt = INITIAL | {name: np.full(4, value, np.float32)}
        with pytest.raises(ConfigurationError, match="not finite"):
            GlobalModel(arrays(**spoilt), ["*"], ["n.*"])


def test_weights_leave_the_range_of_half_precision_for_nobody() -> None:
    """The server's own copy is wider, but clients would receive inf."""

    def client(message: Any) -> Any:
        weights = values(message.content["arrays"])["w"].astype(np.float32)
        assert np.isfinite(weights).all()
        return reply_with(message, arrays(w=weights + 40_000), 10, 1)

    strategy = FedAvg(preset="paper", fraction_evaluate=0.0, probabilities=1.0)
    result = strategy.start(FakeGrid({1: client}), arrays(w=np.zeros(3, np.float16)), 3)
    np.testing.assert_array_equal(values(result.arrays)["w"], np.float16(40_000))


def test_corrections_beyond_half_precision_are_not_sent(caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    sent: list[Any] = []

    def client(message: Any) -> Any:
        sent.extend(values(record) for record in message.content.array_records.values())
        weights = values(message.content["arrays"])["w"]
        return reply_with(message, arrays(w=weights + np.float16(1000)), 10, 1, **{"num-steps": 1})

    run = Scaffold(local_rate=1e-3, step="fixed", fraction_evaluate=0.0)
    run.start(FakeGrid({1: client, 2: drifting(2)}), arrays(w=np.zeros(3, np.float16)), 3)
    assert all(np.isfinite(named["w"]).all() for named in sent)
    assert "client-2 gets no correction: it is not finite in its type" in caplog.text


def test_buffers_weigh_by_the_points_that_are_believed() -> None:
    def claiming(points: float) -> Answer:
        def answer(message: Any) -> Any:
            reply = honest(9)(message)
            if message.content["config"]["server-round"] == 4:
                reply.content["metrics"]["num-examples"] = points  # type: ignore[union-attr,index]
            return reply

        return answer

    found = []
    for points in (10.0, 1e15):
        answers = {client: honest(client) for client in (1, 2)} | {9: claiming(points)}
        run = FedSteer(fraction_evaluate=0.0)
        found.append(values(run.start(FakeGrid(answers), arrays(**INITIAL), 4).arrays))
    np.testing.assert_array_equal(found[0]["n.running_mean"], found[1]["n.running_mean"])
