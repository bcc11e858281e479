"""Rounds that somebody else drives: the loop of Flower itself, and strategies around ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy

from fedsteer import ConfigurationError
from fedsteer.flower import FedSteer
from fedsteer.records import Run
from tests.flower.drifting_clients import FILES, INITIAL, strategy_of, world
from tests.flower.fake import arrays, values


def test_start_after_another_loop_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    strategy = strategy_of("fedavg", tmp_path)
    Strategy.start(strategy, world(), arrays(**INITIAL), num_rounds=2)
    strategy.start(world(), arrays(**INITIAL), num_rounds=3)
    assert [row["round"] for row in Run(tmp_path).rounds] == [1, 2, 3]


def test_the_loop_of_flower_itself_drives_the_strategy_too(tmp_path: Path) -> None:
    strategy = FedSteer(folder=str(tmp_path))
    theirs = Strategy.start(strategy, world(), arrays(**INITIAL), num_rounds=3)
    ours = FedSteer().start(world(), arrays(**INITIAL), num_rounds=3)
    np.testing.assert_array_equal(values(theirs.arrays)["w"], values(ours.arrays)["w"])
    assert len(Run(tmp_path).rounds) == 3
    strategy.store.close()


@pytest.mark.parametrize("wrapped", [False, True])
def test_another_loop_cannot_go_on_from_a_checkpoint(wrapped: bool, tmp_path: Path) -> None:
    initial = arrays(w=np.zeros(50, np.float32))

    def start() -> None:
        strategy = FedSteer(folder=str(tmp_path))
        noisy = DifferentialPrivacyServerSideFixedClipping(strategy, 0.1, 1.0, 4)
        driven = noisy if wrapped else strategy
        Strategy.start(driven, world(), initial, num_rounds=2, train_config=ConfigRecord())
        strategy.store.close()

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


def test_noise_added_by_a_wrapper_is_not_undone() -> None:
    wrapped = DifferentialPrivacyServerSideFixedClipping(FedSteer(), 0.1, 1.0, 4)
    initial = {"w": np.zeros(50, np.float32)}
    result = wrapped.start(world(), arrays(**initial), num_rounds=2, train_config=ConfigRecord())
    assert result.arrays is not None and np.isfinite(values(result.arrays)["w"]).all()
