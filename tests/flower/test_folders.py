"""Folders that hold this run, another run, or a run in progress, and no folder at all."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsteer import ConfigurationError
from fedsteer.errors import StateError
from fedsteer.flower import FedSteer, RuleStrategy
from fedsteer.records import Run, read_checkpoint, write_checkpoint
from fedsteer.records.names import CHECKPOINT
from tests.flower.drifting_clients import INITIAL, strategy_of, world
from tests.flower.fake import arrays
from tests.simulate.small import run_small, stopped_run


@pytest.mark.parametrize(
    ("rule", "options", "initial", "word"),
    [
        ("fedavg", {}, INITIAL, "rule = fedsteer, not fedavg"),
        ("fedsteer", {"core_size": 7}, INITIAL, "core_size = 2, not 7"),
        ("fedsteer", {"authenticated": True}, INITIAL, "authenticated = False, not True"),
        ("fedsteer", {}, INITIAL | {"more": np.zeros(2)}, "other arrays"),
    ],
)
def test_a_checkpoint_of_another_setup_is_refused(
    rule: str, options: dict[str, Any], initial: dict[str, Any], word: str, tmp_path: Path
) -> None:
    strategy_of("fedsteer", tmp_path).start(world(), arrays(**INITIAL), num_rounds=1)
    other = strategy_of(rule, tmp_path, **options)
    for _ in range(2):  # asking twice does not help
        with pytest.raises(ConfigurationError, match=word):
            other.start(world(), arrays(**initial), num_rounds=2)


def test_a_run_of_the_simulator_is_not_overwritten(tmp_path: Path) -> None:
    finished, stopped = tmp_path / "finished", tmp_path / "stopped"
    run_small(finished, "fedavg")
    stopped_run(stopped, 3, "fedavg")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    for _ in range(2):  # asking twice does not help
        with pytest.raises(ConfigurationError, match="holds another run; choose another folder"):
            strategy_of("fedavg", finished).start(world(), arrays(**INITIAL), num_rounds=1)
        with pytest.raises(ConfigurationError, match="not a checkpoint of a Flower run"):
            strategy_of("fedavg", stopped).start(world(), arrays(**INITIAL), num_rounds=1)
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    fresh = strategy_of("fedavg", finished, resume=False)
    assert fresh.start(world(), arrays(**INITIAL), num_rounds=1) and Run(finished).finished


def test_a_checkpoint_of_an_older_version_is_refused_in_one_line(tmp_path: Path) -> None:
    strategy_of("fedavg", tmp_path).start(world(), arrays(**INITIAL), num_rounds=1)
    packed, saved = read_checkpoint(tmp_path / CHECKPOINT)
    run = saved.pop("run")
    totals = run["totals"] | {"trained": run.pop("trained"), "used": run.pop("used")}
    write_checkpoint(tmp_path / CHECKPOINT, packed, saved | run | {"last": {}, "totals": totals})
    with pytest.raises(StateError, match="is from another version") as caught:
        strategy_of("fedavg", tmp_path).start(world(), arrays(**INITIAL), num_rounds=2)
    assert "\n" not in str(caught.value)


def test_a_fixed_probability_cannot_become_sampling(tmp_path: Path) -> None:
    def start(probabilities: object, rounds: int) -> RuleStrategy:
        strategy = strategy_of("fedavg", tmp_path, fraction_train=0.5, probabilities=probabilities)
        strategy.start(world(), arrays(**INITIAL), num_rounds=rounds)
        return strategy

    start(0.5, 1)
    with pytest.raises(ConfigurationError, match=r"probabilities = 0\.5, not sampling"):
        start("sampling", 2)
    assert start(0.5, 2).run.number == 2


def test_sampling_may_change_its_fraction_but_not_become_known_probabilities(
    tmp_path: Path,
) -> None:
    def start(rounds: int, **options: Any) -> RuleStrategy:
        strategy = strategy_of("fedavg", tmp_path, **options)
        strategy.start(world(), arrays(**INITIAL), num_rounds=rounds)
        return strategy

    start(1, fraction_train=0.25, probabilities="sampling")
    with pytest.raises(ConfigurationError, match="probabilities = sampling, not known"):
        start(2, known_probabilities={0: 0.5})
    assert start(2, fraction_train=0.5, probabilities="sampling").run.number == 2


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path) -> None:
    holder = f"""
    import fcntl, sys
    lock = open({str(tmp_path / "rounds.jsonl")!r}, "ab")
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(holder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        strategy = FedSteer(folder=str(tmp_path))
        with pytest.raises(ConfigurationError, match="another process is still writing"):
            strategy.run.store.load(patience=0.1)
        process.stdin.close()
    assert strategy.run.store.load(patience=5.0) is None
    strategy.run.store.close()


def test_nothing_is_written_without_a_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    FedSteer().start(world(), arrays(**INITIAL), num_rounds=2)
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_no_rounds_can_continue(tmp_path: Path) -> None:
    strategy = strategy_of("fedavg", tmp_path)
    strategy.start(world(), arrays(**INITIAL), num_rounds=0)
    strategy.start(world(), arrays(**INITIAL), num_rounds=1)
    strategy_of("fedavg", tmp_path).start(world(), arrays(**INITIAL), num_rounds=2)
    assert [row["round"] for row in Run(tmp_path).rounds] == [1, 2]


def test_another_population_is_refused(tmp_path: Path) -> None:
    strategy_of("fedavg", tmp_path).start(world(), arrays(**INITIAL), num_rounds=1)
    known = {client: 10.0 for client in range(4)}
    with pytest.raises(ConfigurationError, match="a checkpoint with another population; choose"):
        strategy_of("fedavg", tmp_path, population=known).start(
            world(), arrays(**INITIAL), num_rounds=2
        )


def test_a_second_start_with_another_model_is_refused_without_a_folder_too() -> None:
    strategy = FedSteer()
    strategy.start(world(), arrays(**INITIAL), num_rounds=1)
    with pytest.raises(ConfigurationError, match="trained a model with other arrays"):
        strategy.start(world(), arrays(z=np.zeros(4, np.float32)), num_rounds=2)
