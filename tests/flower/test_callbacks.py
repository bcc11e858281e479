"""Functions that are told every round."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import Strategy

from fedsteer import ConfigurationError
from fedsteer.flower import FedSteer, make_strategy, prometheus
from fedsteer.records import Run
from tests.flower.drifting_clients import FILES, INITIAL, evaluate, strategy_of, world
from tests.flower.fake import arrays, values


class Killed(BaseException):
    """As if the process had ended."""


def start(strategy: Any, rounds: int, grid: Any = None) -> Any:
    return strategy.start(
        grid or world(), arrays(**INITIAL), num_rounds=rounds, evaluate_fn=evaluate
    )


def test_a_callback_gets_the_rows_of_the_records(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    start(strategy_of("fedsteer", tmp_path, callbacks=[told.append]), 3)
    rows, times = Run(tmp_path).rounds, Run(tmp_path).rows("timing")
    assert told == [row | timing for row, timing in zip(rows, times, strict=True)]
    assert [row["accuracy"] for row in told] == [0.1, 0.2, 0.3]
    assert json.loads(json.dumps(told)) == told


def test_without_a_folder_it_is_told_the_same(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    here: list[dict[str, Any]] = []
    start(strategy_of("fedsteer", tmp_path, callbacks=[told.append]), 3)
    start(
        make_strategy("fedsteer", core_size=2, server_optimiser="adam", callbacks=[here.append]), 3
    )
    for row in told + here:
        del row["seconds"], row["time"]
    assert here == told


def test_in_flowers_own_loop_too() -> None:
    told: list[dict[str, Any]] = []
    strategy = FedSteer(callbacks=[told.append])
    Strategy.start(strategy, world(), arrays(**INITIAL), num_rounds=2)
    assert [row["round"] for row in told] == [1, 2] and told[1]["accuracy"] == 0.5


@pytest.mark.parametrize("sends", [2, 3])  # while training in round 2, while evaluating it
def test_a_restart_leaves_no_round_out_and_tells_none_twice(sends: int, tmp_path: Path) -> None:
    told: list[int] = []

    def note(row: dict[str, Any]) -> None:
        told.append(row["round"])

    def kill(count: int) -> None:
        if count == sends:
            raise Killed

    grid = world()
    grid.before = kill
    with pytest.raises(Killed):
        start(strategy_of("fedsteer", tmp_path, callbacks=[note]), 4, grid)
    start(strategy_of("fedsteer", tmp_path, callbacks=[note]), 4)
    assert told == [1, 2, 3, 4]


def test_a_callback_that_raises_is_logged_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    told: list[int] = []

    def broken(row: dict[str, Any]) -> None:
        row.clear()  # its own copy
        raise KeyError("no such column")

    def other(row: dict[str, Any]) -> None:
        told.append(row["round"])

    result = start(strategy_of("fedsteer", tmp_path / "a", callbacks=[broken, other]), 3)
    whole = start(strategy_of("fedsteer", tmp_path / "b"), 3)
    assert told == [1, 2, 3]
    (said,) = [r for r in caplog.records if "the callback" in r.getMessage()]
    assert said.levelname == "WARNING" and said.exc_info
    assert "broken raised KeyError('no such column')" in said.getMessage()
    np.testing.assert_array_equal(values(result.arrays)["w"], values(whole.arrays)["w"])
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_interrupting_a_callback_ends_the_run(tmp_path: Path) -> None:
    def interrupted(row: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(strategy_of("fedsteer", tmp_path, callbacks=[interrupted]), 3)
    assert [row["round"] for row in Run(tmp_path).rounds] == [1]


@pytest.mark.parametrize("callbacks", [print, "print", [3], {"a": print}])
def test_mistakes_are_named(callbacks: Any) -> None:
    with pytest.raises(ConfigurationError, match="callbacks must be"):
        FedSteer(callbacks=callbacks)


def test_rows_of_timing_say_when(tmp_path: Path) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    start(strategy_of("fedsteer", tmp_path), 2)
    times = [datetime.fromisoformat(row["time"]) for row in Run(tmp_path).rows("timing")]
    assert len(times) == 2 and before <= times[0] <= times[1] <= datetime.now(UTC)
    assert all(time.utcoffset() == timedelta(0) and not time.microsecond for time in times)


def test_prometheus_reads_the_last_round(tmp_path: Path) -> None:
    file = tmp_path / "fedsteer.prom"
    start(FedSteer(callbacks=[prometheus(file)]), 3)
    lines = file.read_text().splitlines()
    assert "fedsteer_round 3.0" in lines and "fedsteer_asked 4.0" in lines
    assert 'fedsteer_evaluation{name="eval_acc",by="clients"} 0.5' in lines
    assert any(line.startswith("fedsteer_seconds ") for line in lines)
