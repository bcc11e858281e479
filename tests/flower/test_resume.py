"""A killed ServerApp resumes after its last finished round, with the records of one run."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result
from safetensors.numpy import load_file

from fedsteer import RULES, ConfigurationError, rules
from fedsteer.flower import FedSteer, make_strategy
from fedsteer.records import Run
from fedsteer.records.files import plain
from fedsteer.report import summarise, to_markdown, write_page
from tests.files import read_json
from tests.flower.drifting_clients import FILES, INITIAL, evaluate, strategy_of, world
from tests.flower.fake import FakeGrid, arrays, values


class Killed(BaseException):
    """As if the process had ended."""


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("sends", [4, 5])  # while training in round 3, while evaluating it
def test_a_resumed_run_equals_an_unbroken_one(rule: str, sends: int, tmp_path: Path) -> None:
    unbroken = strategy_of(rule, tmp_path / "whole").start(
        world(), arrays(**INITIAL), num_rounds=6, evaluate_fn=evaluate
    )
    grid = world()

    def kill(count: int) -> None:
        if count == sends:
            raise Killed

    grid.before = kill
    with pytest.raises(Killed):
        strategy_of(rule, tmp_path / "broken").start(
            grid, arrays(**INITIAL), num_rounds=6, evaluate_fn=evaluate
        )
    again = world()
    resumed = strategy_of(rule, tmp_path / "broken").start(
        again, arrays(**INITIAL), num_rounds=6, evaluate_fn=evaluate
    )
    assert len(again.asked) == 12 - sends
    for name, array in values(unbroken.arrays).items():
        found = values(resumed.arrays)[name]
        assert found.dtype == array.dtype and found.shape == array.shape
        np.testing.assert_array_equal(found, array)
    for name in FILES:
        whole = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "broken" / name).read_bytes() == whole
    rounds = Run(tmp_path / "broken").rounds
    assert [row["round"] for row in rounds] == [1, 2, 3, 4, 5, 6]
    assert [row["accuracy"] for row in rounds] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert rounds[0]["evaluation"]["clients"]["eval_acc"] == 0.5


def test_a_kill_before_the_first_checkpoint_is_due(tmp_path: Path) -> None:
    """There are rows of two rounds then: nobody else's."""
    grid = world()

    def kill(count: int) -> None:
        if count == 5:  # evaluating round 3
            raise Killed

    grid.before = kill
    with pytest.raises(Killed):
        strategy_of("fedsteer", tmp_path / "broken", checkpoint_every=5).start(
            grid, arrays(**INITIAL), num_rounds=6
        )
    assert len(Run(tmp_path / "broken").rounds) == 2
    for name in ("broken", "whole"):
        strategy_of("fedsteer", tmp_path / name, checkpoint_every=5).start(
            world(), arrays(**INITIAL), num_rounds=6
        )
    for name in FILES:
        whole = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "broken" / name).read_bytes() == whole


def test_a_finished_run_can_be_extended(tmp_path: Path) -> None:
    def start(rounds: int) -> FakeGrid:
        grid = world()
        FedSteer(folder=str(tmp_path)).start(
            grid, arrays(**INITIAL), num_rounds=rounds, evaluate_fn=evaluate
        )
        return grid

    start(2)
    before = [(tmp_path / name).read_bytes() for name in FILES]
    assert start(2).asked == []
    assert [(tmp_path / name).read_bytes() for name in FILES] == before
    assert read_json(tmp_path / "manifest.json")["planned_rounds"] == 2
    assert len(start(3).asked) == 2
    assert read_json(tmp_path / "manifest.json")["planned_rounds"] == 3
    assert read_json(tmp_path / "result.json")["rounds"] == 3
    assert read_json(tmp_path / "result.json")["accuracy"] == 0.3


@pytest.mark.parametrize("missing", [20, 1])  # 1: only the end of the line
def test_a_row_cut_short_by_the_kill_is_written_again(missing: int, tmp_path: Path) -> None:
    FedSteer(folder=str(tmp_path)).start(world(), arrays(**INITIAL), num_rounds=2)
    whole = (tmp_path / "rounds.jsonl").read_bytes()
    (tmp_path / "rounds.jsonl").write_bytes(whole[:-missing])
    FedSteer(folder=str(tmp_path)).start(world(), arrays(**INITIAL), num_rounds=2)
    assert (tmp_path / "rounds.jsonl").read_bytes() == whole


def test_resuming_can_be_declined(tmp_path: Path) -> None:
    FedSteer(folder=str(tmp_path)).start(world(), arrays(**INITIAL), num_rounds=2)
    grid = world()
    FedSteer(folder=str(tmp_path), resume=False).start(grid, arrays(**INITIAL), num_rounds=1)
    assert len(grid.asked) == 2 and len(Run(tmp_path).rounds) == 1


def test_a_second_start_continues(tmp_path: Path) -> None:
    strategy = FedSteer(folder=str(tmp_path))
    strategy.start(world(), arrays(**INITIAL), num_rounds=2)
    two = strategy.start(world(), arrays(**INITIAL), num_rounds=4)
    whole = FedSteer().start(world(), arrays(**INITIAL), num_rounds=4)
    np.testing.assert_array_equal(values(two.arrays)["w"], values(whole.arrays)["w"])
    assert len(Run(tmp_path).rounds) == 4


@pytest.mark.parametrize("which", ["train", "evaluate"])
@pytest.mark.parametrize("same", [True, False], ids=["same object", "new object"])
def test_a_metrics_function_that_raises_costs_no_round(
    which: str, same: bool, tmp_path: Path
) -> None:
    def mean(contents: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord({"accuracy": 0.5})

    def broken(contents: list[RecordDict], key: str) -> MetricRecord:
        raise KeyError("no such metric")

    functions = {"train_metrics_aggr_fn": mean, "evaluate_metrics_aggr_fn": mean}
    whole = strategy_of("fedsteer", tmp_path / "whole", **functions)
    unbroken = whole.start(world(), arrays(**INITIAL), num_rounds=4)
    name, folder = f"{which}_metrics_aggr_fn", tmp_path / "broken"
    strategy = strategy_of("fedsteer", folder, **functions | {name: broken})
    for number in (1, 2) if which == "train" else (1, 1):  # evaluation is done again
        with pytest.raises(KeyError, match="no such metric"):
            strategy.start(world(), arrays(**INITIAL), num_rounds=4)
        assert strategy.run.number == number
    if same:
        setattr(strategy, f"{which}_metrics", mean)
    else:
        strategy = strategy_of("fedsteer", folder, **functions)
    resumed = strategy.start(world(), arrays(**INITIAL), num_rounds=4)
    np.testing.assert_array_equal(values(resumed.arrays)["w"], values(unbroken.arrays)["w"])
    rows, whole_rows = Run(folder).rounds, Run(tmp_path / "whole").rounds
    for row in whole_rows[:2] if which == "train" else ():
        assert row.pop("training") == {"accuracy": 0.5}  # what the function never said
    assert rows == whole_rows
    clients = (folder / "clients.jsonl").read_bytes()
    assert clients == (tmp_path / "whole" / "clients.jsonl").read_bytes()


def numbers(result: Result) -> list[dict[int, dict[str, Any]]]:
    """All metrics; those in the records have nine digits."""
    found = []
    for rounds in (
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
        result.evaluate_metrics_serverapp,
    ):
        found.append({number: plain(dict(metrics)) for number, metrics in rounds.items()})
    return found


def test_a_result_has_all_rounds_after_a_resume_and_of_a_finished_run(tmp_path: Path) -> None:
    whole = strategy_of("fedsteer", tmp_path / "whole").start(
        world(), arrays(**INITIAL), num_rounds=4, evaluate_fn=evaluate
    )
    for rounds in (2, 4, 4):
        result = strategy_of("fedsteer", tmp_path / "parts").start(
            world(), arrays(**INITIAL), num_rounds=rounds, evaluate_fn=evaluate
        )
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2, 3, 4]
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4]
    assert numbers(result) == numbers(whole)
    np.testing.assert_array_equal(values(result.arrays)["w"], values(whole.arrays)["w"])


def test_models_have_the_names_of_their_arrays(tmp_path: Path) -> None:
    """The last one, and the one with the best evaluation, which a resume does not forget."""
    seen: dict[int, np.ndarray] = {}

    def evaluate(number: int, record: ArrayRecord) -> MetricRecord:
        seen[number] = values(record)["w"]
        return MetricRecord({"loss": abs(number - 3.0)})

    for rounds in (4, 6):
        strategy = FedSteer(folder=str(tmp_path), fraction_evaluate=0.0)
        result = strategy.start(world(), arrays(**INITIAL), num_rounds=rounds, evaluate_fn=evaluate)
    last, best = (load_file(tmp_path / f"{name}.safetensors") for name in ("model", "best"))
    assert set(last) == set(best) == set(INITIAL)
    for name, array in values(result.arrays).items():
        np.testing.assert_array_equal(last[name], array)
        assert last[name].dtype == array.dtype and last[name].shape == array.shape
    np.testing.assert_array_equal(best["w"], seen[3])
    strategy = FedSteer(folder=str(tmp_path), resume=False, fraction_evaluate=0.0)
    strategy.start(world(), arrays(**INITIAL), num_rounds=1)
    assert not (tmp_path / "best.safetensors").exists()


def test_the_log_begins_and_ends_as_flowers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    FedSteer().start(world(), arrays(**INITIAL), num_rounds=1)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "Starting FedSteer strategy:"
    assert "\t├── Number of rounds: 1" in said
    assert any(line.startswith("Strategy execution finished in") for line in said)
    assert "Final results:" in said and "\tGlobal Arrays:" in said
    (training,) = [line for line in said if "training:" in line]
    assert re.search(r"train_loss \d\.?\d{0,3}, ", training)


def test_a_metrics_function_that_raises_costs_no_round_without_a_folder() -> None:
    def broken(contents: list[RecordDict], key: str) -> MetricRecord:
        raise KeyError("no such metric")

    strategy = FedSteer(train_metrics_aggr_fn=broken)
    for number in (1, 2, 3):
        with pytest.raises(KeyError, match="no such metric"):
            strategy.start(world(), arrays(**INITIAL), num_rounds=3)
        assert strategy.run.number == number
    whole = FedSteer().start(world(), arrays(**INITIAL), num_rounds=3)
    done = strategy.start(world(), arrays(**INITIAL), num_rounds=3)
    np.testing.assert_array_equal(values(done.arrays)["w"], values(whole.arrays)["w"])


def test_a_second_start_writes_records_if_the_first_never_finished_a_round(tmp_path: Path) -> None:
    strategy = FedSteer(folder=str(tmp_path), registration_timeout=0.0)
    with pytest.raises(ConfigurationError, match="nodes had registered"):
        strategy.start(FakeGrid(), arrays(**INITIAL), num_rounds=2)
    strategy.start(world(), arrays(**INITIAL), num_rounds=2)
    assert len(Run(tmp_path).rounds) == 2 and Run(tmp_path).finished


def test_the_report_has_curves_of_a_flower_run(tmp_path: Path) -> None:
    for rule in ("fedsteer", "fedavg"):
        strategy_of(rule, tmp_path / rule).start(
            world(), arrays(**INITIAL), num_rounds=3, evaluate_fn=evaluate
        )
    runs = [Run(tmp_path / rule) for rule in ("fedsteer", "fedavg")]
    assert all(run.finished for run in runs)
    assert "| fedsteer (practical) | 30.0 |" in to_markdown(summarise(runs, baseline="fedavg"))
    write_page(runs, tmp_path / "report.html", baseline="fedavg")
    assert (tmp_path / "report.html").stat().st_size > 100_000
    result = read_json(tmp_path / "fedsteer" / "result.json")
    assert result["uploads"] == sum(row["active"] for row in runs[0].rounds)
    assert result["bytes_up"] > 0 and result["server_bytes"] > 0


def test_without_evaluation_by_the_server_the_clients_give_the_curve(tmp_path: Path) -> None:
    FedSteer(folder=str(tmp_path)).start(world(), arrays(**INITIAL), num_rounds=2)
    assert [row["accuracy"] for row in Run(tmp_path).rounds] == [0.5, 0.5]
    assert [row["loss"] for row in Run(tmp_path).rounds] == [1.0, 1.0]


def whole_run(folder: Path) -> dict[str, bytes]:
    """The record files of six undisturbed rounds."""
    strategy_of("fedsteer", folder).start(world(), arrays(**INITIAL), num_rounds=6)
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("where", ["saving", "recording"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_second_start_resumes_from_the_last_checkpoint(
    where: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one ended in the middle of a round, with memory ahead of the disk."""
    strategy = strategy_of("fedsteer", tmp_path / "broken")
    place, name = (
        (strategy.run, "end_round") if where == "recording" else (strategy.run.store, "save")
    )
    real, calls = getattr(place, name), iter(range(1, 100))

    def fails(*given: Any) -> Any:
        if next(calls) == number:
            raise OSError(28, "No space left on device")
        return real(*given)

    monkeypatch.setattr(place, name, fails)
    with pytest.raises(OSError, match="No space left"):
        strategy.start(world(), arrays(**INITIAL), num_rounds=6)
    strategy.start(world(), arrays(**INITIAL), num_rounds=6)
    whole = whole_run(tmp_path / "whole")
    assert {name: (tmp_path / "broken" / name).read_bytes() for name in FILES} == whole


def test_a_second_start_without_a_folder_continues_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy = make_strategy("fedsteer", core_size=2)
    real, calls = strategy.run.store.record, iter(range(1, 100))

    def fails(*given: Any) -> Any:
        real(*given)
        if next(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(strategy.run.store, "record", fails)
    with pytest.raises(KeyboardInterrupt):
        strategy.start(world(), arrays(**INITIAL), num_rounds=4)
    strategy.start(world(), arrays(**INITIAL), num_rounds=4)
    assert strategy.run.number == 4


def test_runs_of_different_length_are_different_experiments(tmp_path: Path) -> None:
    for seed, rounds in ((0, 2), (1, 4)):
        strategy = strategy_of("fedavg", tmp_path / f"seed-{seed}", seed=seed)
        strategy.start(world(), arrays(**INITIAL), num_rounds=rounds, evaluate_fn=evaluate)
    rows = summarise([Run(tmp_path / "seed-0"), Run(tmp_path / "seed-1")]).rows
    assert sorted(row.experiment.partition("rounds=")[2] for row in rows) == ["2)", "4)"]


def test_an_averaged_model_is_evaluated_and_handed_out(tmp_path: Path) -> None:
    seen: list[float] = []

    def watch(number: int, record: Any) -> MetricRecord:
        seen.append(float(values(record)["w"].sum()))
        return MetricRecord({"accuracy": seen[-1]})

    strategy = FedSteer(folder=str(tmp_path), core_size=2, server_average=3)
    result = strategy.start(world(), arrays(**INITIAL), num_rounds=5, evaluate_fn=watch)
    rows = Run(tmp_path).rounds
    assert [row["accuracy"] for row in rows] == pytest.approx(
        seen[1::2]
    )  # seen[0] is the initial model
    assert [row["average_accuracy"] for row in rows] == pytest.approx(seen[2::2])
    assert rows[0]["accuracy"] == rows[0]["average_accuracy"]
    assert rows[4]["accuracy"] != rows[4]["average_accuracy"]
    assert float(values(result.arrays)["w"].sum()) == seen[-1]
    assert read_json(tmp_path / "result.json")["average_accuracy"] == rows[4]["average_accuracy"]


def test_a_resumed_run_keeps_what_its_preset_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy_of("fedsteer", tmp_path).start(world(), arrays(**INITIAL), num_rounds=3)
    monkeypatch.setitem(rules.PRACTICAL, "norm_bound", 0.125)
    assert strategy_of("fedsteer", tmp_path).rule.options.norm_bound == 1.0
    assert strategy_of("fedsteer", tmp_path, norm_bound=0.25).rule.options.norm_bound == 0.25
    assert strategy_of("fedsteer", tmp_path, resume=False).rule.options.norm_bound == 0.125
    assert strategy_of("fedsteer", tmp_path / "new").rule.options.norm_bound == 0.125
