"""Loops that are not ours: Flower's own, and those of strategies that wrap ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import Strategy

from fedsteer import ConfigurationError
from fedsteer.flower import FedSteer
from fedsteer.records import Run
from tests.flower.drifting_clients import FILES, INITIAL, strategy_of, world
from tests.flower.fake import FakeGrid, arrays, drifting, late, reply_with, values


def test_start_after_another_loop_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    strategy = strategy_of("fedavg", tmp_path)
    Strategy.start(strategy, world(), arrays(**INITIAL), num_rounds=2)
    strategy.start(world(), arrays(**INITIAL), num_rounds=3)
    assert [row["round"] for row in Run(tmp_path).rounds] == [1, 2, 3]


def test_flowers_own_loop_gives_the_same_arrays(tmp_path: Path) -> None:
    strategy = FedSteer(folder=str(tmp_path))
    theirs = Strategy.start(strategy, world(), arrays(**INITIAL), num_rounds=3)
    ours = FedSteer().start(world(), arrays(**INITIAL), num_rounds=3)
    np.testing.assert_array_equal(values(theirs.arrays)["w"], values(ours.arrays)["w"])
    assert len(Run(tmp_path).rounds) == 3
    strategy.run.store.close()


@pytest.mark.parametrize("wrapped", [False, True])
def test_another_loop_cannot_resume_from_a_checkpoint(wrapped: bool, tmp_path: Path) -> None:
    initial = arrays(w=np.zeros(50, np.float32))

    def start() -> None:
        strategy = FedSteer(folder=str(tmp_path))
        driven = Noisy(strategy, in_place=False) if wrapped else strategy
        Strategy.start(driven, world(), initial, num_rounds=2, train_config=ConfigRecord())
        strategy.run.store.close()

    start()
    before = [(tmp_path / name).read_bytes() for name in FILES]
    with pytest.raises(ConfigurationError, match="choose another folder") as caught:
        start()
    assert "\n" not in str(caught.value) and "after round 2" in str(caught.value)
    assert [(tmp_path / name).read_bytes() for name in FILES] == before
    FedSteer(folder=str(tmp_path)).start(world(), initial, num_rounds=3)
    assert [row["round"] for row in Run(tmp_path).rounds] == [1, 2, 3]


def test_another_loop_cannot_begin_again_without_a_folder() -> None:
    strategy = FedSteer()
    Strategy.start(strategy, world(), arrays(**INITIAL), num_rounds=2)
    with pytest.raises(ConfigurationError, match="make a new strategy"):
        Strategy.start(strategy, world(), arrays(**INITIAL), num_rounds=2)
    # The refused start does not put the trained model back to the first arrays.
    continued = strategy.start(world(), arrays(**INITIAL), num_rounds=3)
    whole = FedSteer().start(world(), arrays(**INITIAL), num_rounds=3)
    np.testing.assert_array_equal(values(continued.arrays)["w"], values(whole.arrays)["w"])


class Noisy(Strategy):
    """A wrapper that changes the arrays it is handed, in place or in a copy."""

    def __init__(self, inner: Strategy, *, in_place: bool) -> None:
        self.inner, self.in_place = inner, in_place

    def summary(self) -> None: ...

    def configure_train(self, *given: Any) -> Any:
        return self.inner.configure_train(*given)

    def aggregate_train(self, *given: Any) -> Any:
        record, metrics = self.inner.aggregate_train(*given)
        assert record is not None
        target = record if self.in_place else ArrayRecord(dict(record))
        for name in list(target):
            target[name] = Array(target[name].numpy() + np.float32(1))
        return target, metrics

    def configure_evaluate(self, *given: Any) -> Any:
        return self.inner.configure_evaluate(*given)

    def aggregate_evaluate(self, *given: Any) -> Any:
        return self.inner.aggregate_evaluate(*given)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_model_is_what_a_wrapper_makes_of_it(in_place: bool) -> None:
    def still(message: Message) -> Message:
        return reply_with(message, message.content["arrays"], 10, 0)  # type: ignore[arg-type]

    initial = arrays(w=np.zeros(4, np.float32))
    noisy = Noisy(FedSteer(), in_place=in_place)
    result = noisy.start(FakeGrid({1: still}), initial, num_rounds=5, timeout=1)
    np.testing.assert_array_equal(values(result.arrays)["w"], 5.0)


def test_another_loop_waits_for_nodes_as_ours_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fedsteer.flower.asking.time.sleep", lambda seconds: None)
    strategy = FedSteer(folder=tmp_path, min_available_nodes=2, registration_timeout=0.2)
    with pytest.raises(ConfigurationError, match="0 of 2 nodes had registered"):
        Strategy.start(strategy, FakeGrid({}), arrays(**INITIAL), num_rounds=2)
    assert strategy.run.store.records is None  # others may have the folder
    grid = world()
    grid.offline, looks = set(grid.answers), []

    def appear(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            grid.offline.clear()

    monkeypatch.setattr("fedsteer.flower.asking.time.sleep", appear)
    strategy = FedSteer(min_available_nodes=4, registration_timeout=60.0)
    result = Strategy.start(strategy, grid, arrays(**INITIAL), num_rounds=1)
    assert result.train_metrics_clientapp[1]["fedsteer-active"] > 0 and len(looks) == 3


def test_a_round_in_which_everybody_fails_leaves_the_model_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    online = FakeGrid({c: drifting(c) for c in range(3)})
    strategy = FedSteer(fraction_evaluate=0.0)
    before = values(strategy.start(online, arrays(w=np.zeros(3, np.float32)), 3).arrays)
    failing = FakeGrid({c: late for c in range(3)})
    after = values(strategy.start(failing, arrays(**before), 6).arrays)
    np.testing.assert_array_equal(after["w"], before["w"])
    assert np.abs(before["w"]).max() > 0
    assert caplog.text.count("the model stays as it is") == 3
