"""A killed ServerApp goes on from its last finished round, and leaves the records of one run."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy

from fedsteer import RULES, ConfigurationError
from fedsteer.errors import DataError
from fedsteer.flower import FedSteer, RuleStrategy, make_strategy
from fedsteer.records import Run
from fedsteer.records.files import read_json
from fedsteer.report import summarise, to_markdown, write_page
from tests.flower.fake import Answer, FakeGrid, arrays, drifting, late, values
from tests.simulate.small import run_small, stopped_run

INITIAL: dict[str, Any] = {
    "w": np.zeros((2, 3), np.float16),
    "bn.running_mean": np.zeros(3, np.float32),
    "bn.num_batches_tracked": np.array(0),
}
FILES = ("rounds.jsonl", "clients.jsonl")


class Killed(BaseException):
    """As if the process had ended."""


def steps(client: int) -> Answer:
    inner = drifting(client)

    def answer(message: Any) -> Any:
        number = int(message.content["config"]["server-round"])
        if (number + client) % 3 == 0:
            return late(message)
        reply = inner(message)
        reply.content["metrics"]["num-steps"] = 2  # type: ignore[union-attr,index]
        return reply

    return answer


def world() -> FakeGrid:
    return FakeGrid({100 + c: steps(c) for c in range(4)})


def evaluate(number: int, record: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": number / 10, "loss": float(values(record)["w"].sum())})


def strategy_of(rule: str, folder: Path, **options: Any) -> RuleStrategy:
    if rule == "fedsteer":
        options = {"core_size": 2} | options
    return make_strategy(rule, folder=str(folder), server_optimiser="adam", **options)


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("sends", [4, 5])  # while training in round 3, while evaluating it
def test_a_resumed_run_is_the_unbroken_one(rule: str, sends: int, tmp_path: Path) -> None:
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


def test_a_finished_run_stays_as_it_is_and_can_be_continued(tmp_path: Path) -> None:
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
    assert len(start(3).asked) == 2
    assert read_json(tmp_path / "result.json")["rounds"] == 3
    assert read_json(tmp_path / "result.json")["accuracy"] == 0.3


def test_a_row_torn_by_the_kill_is_written_again(tmp_path: Path) -> None:
    FedSteer(folder=str(tmp_path)).start(world(), arrays(**INITIAL), num_rounds=2)
    whole = (tmp_path / "rounds.jsonl").read_bytes()
    (tmp_path / "rounds.jsonl").write_bytes(whole[:-20])
    FedSteer(folder=str(tmp_path)).start(world(), arrays(**INITIAL), num_rounds=2)
    assert (tmp_path / "rounds.jsonl").read_bytes() == whole


def test_resuming_can_be_declined(tmp_path: Path) -> None:
    FedSteer(folder=str(tmp_path)).start(world(), arrays(**INITIAL), num_rounds=2)
    grid = world()
    FedSteer(folder=str(tmp_path), resume=False).start(grid, arrays(**INITIAL), num_rounds=1)
    assert len(grid.asked) == 2 and len(Run(tmp_path).rounds) == 1


def test_a_second_start_goes_on(tmp_path: Path) -> None:
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
        assert strategy.number == number
    if same:
        setattr(strategy, f"{which}_metrics", mean)
    else:
        strategy = strategy_of("fedsteer", folder, **functions)
    resumed = strategy.start(world(), arrays(**INITIAL), num_rounds=4)
    np.testing.assert_array_equal(values(resumed.arrays)["w"], values(unbroken.arrays)["w"])
    for file in FILES:
        assert (folder / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_metrics_function_that_raises_costs_no_round_without_a_folder() -> None:
    def broken(contents: list[RecordDict], key: str) -> MetricRecord:
        raise KeyError("no such metric")

    strategy = FedSteer(train_metrics_aggr_fn=broken)
    for number in (1, 2, 3):
        with pytest.raises(KeyError, match="no such metric"):
            strategy.start(world(), arrays(**INITIAL), num_rounds=3)
        assert strategy.number == number
    whole = FedSteer().start(world(), arrays(**INITIAL), num_rounds=3)
    done = strategy.start(world(), arrays(**INITIAL), num_rounds=3)
    np.testing.assert_array_equal(values(done.arrays)["w"], values(whole.arrays)["w"])


def test_a_second_start_writes_records_if_the_first_never_finished_a_round(tmp_path: Path) -> None:
    strategy = FedSteer(folder=str(tmp_path), registration_timeout=0.0)
    with pytest.raises(ConfigurationError, match="nodes had registered"):
        strategy.start(FakeGrid(), arrays(**INITIAL), num_rounds=2)
    strategy.start(world(), arrays(**INITIAL), num_rounds=2)
    assert len(Run(tmp_path).rounds) == 2 and Run(tmp_path).finished


@pytest.mark.parametrize(
    ("rule", "options", "initial", "word"),
    [
        ("fedavg", {}, INITIAL, "rule = fedsteer, not fedavg"),
        ("fedsteer", {"core_size": 7}, INITIAL, "core_size = 2, not 7"),
        ("fedsteer", {"authenticated": True}, INITIAL, "authenticated = False, not True"),
        ("fedsteer", {}, INITIAL | {"more": np.zeros(2)}, "other arrays"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    rule: str, options: dict[str, Any], initial: dict[str, Any], word: str, tmp_path: Path
) -> None:
    strategy_of("fedsteer", tmp_path).start(world(), arrays(**INITIAL), num_rounds=1)
    other = strategy_of(rule, tmp_path, **options)
    for _ in range(2):  # asking twice does not help
        with pytest.raises(ConfigurationError, match=word):
            other.start(world(), arrays(**initial), num_rounds=2)


def test_a_run_of_the_simulator_is_not_written_over(tmp_path: Path) -> None:
    finished, stopped = tmp_path / "finished", tmp_path / "stopped"
    run_small(finished, "fedavg")
    stopped_run(stopped, 3, "fedavg")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    for _ in range(2):  # asking twice does not help
        with pytest.raises(ConfigurationError, match="holds another run; choose another folder"):
            strategy_of("fedavg", finished).start(world(), arrays(**INITIAL), num_rounds=1)
        with pytest.raises(DataError, match="not a checkpoint of a Flower run"):
            strategy_of("fedavg", stopped).start(world(), arrays(**INITIAL), num_rounds=1)
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    anew = strategy_of("fedavg", finished, resume=False)
    assert anew.start(world(), arrays(**INITIAL), num_rounds=1) and Run(finished).finished


def test_start_after_another_loop_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    strategy = strategy_of("fedavg", tmp_path)
    Strategy.start(strategy, world(), arrays(**INITIAL), num_rounds=2)
    strategy.start(world(), arrays(**INITIAL), num_rounds=3)
    assert [row["round"] for row in Run(tmp_path).rounds] == [1, 2, 3]


def test_a_fraction_of_a_checkpoint_goes_on_as_a_number_only(tmp_path: Path) -> None:
    def start(probabilities: object, rounds: int) -> RuleStrategy:
        strategy = strategy_of("fedavg", tmp_path, fraction_train=0.5, probabilities=probabilities)
        strategy.start(world(), arrays(**INITIAL), num_rounds=rounds)
        return strategy

    start(0.5, 1)  # what "sampling" once wrote into checkpoints
    with pytest.raises(ConfigurationError, match=r"probabilities = 0\.5, not sampling"):
        start("sampling", 2)
    assert start(0.5, 2).number == 2


def test_a_run_that_samples_goes_on_with_another_fraction_but_no_other_source(
    tmp_path: Path,
) -> None:
    def start(rounds: int, **options: Any) -> RuleStrategy:
        strategy = strategy_of("fedavg", tmp_path, **options)
        strategy.start(world(), arrays(**INITIAL), num_rounds=rounds)
        return strategy

    start(1, fraction_train=0.25, probabilities="sampling")
    with pytest.raises(ConfigurationError, match="probabilities = sampling, not known"):
        start(2, known_probabilities={0: 0.5})
    assert start(2, fraction_train=0.5, probabilities="sampling").number == 2


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
            strategy.store.load(patience=0.1)
        process.stdin.close()
    assert strategy.store.load(patience=5.0) is None
    strategy.store.close()


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


def test_evaluation_by_clients_gives_the_curve_where_the_server_has_none(tmp_path: Path) -> None:
    FedSteer(folder=str(tmp_path)).start(world(), arrays(**INITIAL), num_rounds=2)
    assert [row["accuracy"] for row in Run(tmp_path).rounds] == [0.5, 0.5]
    assert [row["loss"] for row in Run(tmp_path).rounds] == [1.0, 1.0]


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


def test_nothing_is_written_without_a_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    FedSteer().start(world(), arrays(**INITIAL), num_rounds=2)
    assert list(tmp_path.iterdir()) == []


def whole_run(folder: Path) -> dict[str, bytes]:
    """The record files of six rounds that nothing disturbed."""
    strategy_of("fedsteer", folder).start(world(), arrays(**INITIAL), num_rounds=6)
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("where", ["saving", "recording"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_second_start_goes_on_from_the_last_checkpoint(
    where: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one ended in the middle of a round: memory is ahead of the disk, or torn."""
    strategy = strategy_of("fedsteer", tmp_path / "broken")
    place, name = (strategy, "_record") if where == "recording" else (strategy.store, "save")
    real, calls = getattr(place, name), iter(range(1, 100))

    def fails(*given: Any) -> None:
        if next(calls) == number:
            raise OSError(28, "No space left on device")
        real(*given)

    monkeypatch.setattr(place, name, fails)
    with pytest.raises(OSError, match="No space left"):
        strategy.start(world(), arrays(**INITIAL), num_rounds=6)
    strategy.start(world(), arrays(**INITIAL), num_rounds=6)
    whole = whole_run(tmp_path / "whole")
    assert {name: (tmp_path / "broken" / name).read_bytes() for name in FILES} == whole


def test_a_second_start_without_a_folder_goes_on_from_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy = make_strategy("fedsteer", core_size=2)
    real, calls = strategy._record, iter(range(1, 100))

    def fails(*given: Any) -> None:
        real(*given)
        if next(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(strategy, "_record", fails)
    with pytest.raises(KeyboardInterrupt):
        strategy.start(world(), arrays(**INITIAL), num_rounds=4)
    strategy.start(world(), arrays(**INITIAL), num_rounds=4)
    assert strategy.number == 4


def test_runs_of_different_length_are_no_seeds_of_one(tmp_path: Path) -> None:
    for seed, rounds in ((0, 2), (1, 4)):
        strategy = strategy_of("fedavg", tmp_path / f"seed-{seed}", seed=seed)
        strategy.start(world(), arrays(**INITIAL), num_rounds=rounds, evaluate_fn=evaluate)
    rows = summarise([Run(tmp_path / "seed-0"), Run(tmp_path / "seed-1")]).rows
    assert sorted(row.experiment.partition("rounds=")[2] for row in rows) == ["2)", "4)"]


def test_a_run_of_no_rounds_can_be_gone_on_with(tmp_path: Path) -> None:
    strategy = strategy_of("fedavg", tmp_path)
    strategy.start(world(), arrays(**INITIAL), num_rounds=0)
    strategy.start(world(), arrays(**INITIAL), num_rounds=1)
    strategy_of("fedavg", tmp_path).start(world(), arrays(**INITIAL), num_rounds=2)
    assert [row["round"] for row in Run(tmp_path).rounds] == [1, 2]
