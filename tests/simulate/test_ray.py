"""Runs on a real Ray cluster, started here: the records of local processes, resume, losses."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsteer.cli import main
from fedsteer.errors import ConfigurationError, extra
from fedsteer.records import Run, find_runs
from fedsteer.records.names import CHECKPOINT
from fedsteer.simulate.cells import Cell, plan_cells
from fedsteer.simulate.compare import compare_cells
from fedsteer.simulate.executors import task
from fedsteer.simulate.runner import Interrupted, Progress
from tests.simulate.small import compare_small, exact_files, small

RULES = ["full", "fedavg", "fedsteer"]


def test_without_ray_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    for command in ("compare", "reproduce table1 --smoke --seeds 1 --only emnist-0.9"):
        for option in ("--executor", "--engine"):  # the second is its old name
            assert main([*command.split(), option, "ray"]) == 2
            said = capsys.readouterr()
            assert said.err == f"fedsteer: --executor ray needs it: {extra('ray')}\n"


@pytest.mark.parametrize("command", ["compare", "reproduce"])
def test_the_old_name_of_the_option_is_hidden(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = capsys.readouterr().out
    assert "--executor {processes,ray}" in said and "--engine" not in said


def test_an_executor_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'ray'"):
        compare_cells(plan_cells(small(), ["fedavg"], tmp_path), executor="rya")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init("local", num_cpus=2, **quiet)
    yield ray
    ray.shutdown()


def same(one: Path, other: Path) -> None:
    for run in find_runs(one):
        name = run.folder.relative_to(one)
        assert run.finished and exact_files(run.folder) == exact_files(other / name), name


def long(rounds: int = 400) -> Any:
    """Some seconds, with a checkpoint every few."""
    return small({"run.rounds": rounds, "run.evaluate_every": 50, "run.checkpoint_every": 20})


@pytest.mark.slow
def test_the_records_are_those_of_local_processes(cluster: Any, tmp_path: Path) -> None:
    finished: list[Path] = []

    def report(cell: Cell, progress: Progress | None) -> None:
        if progress is None:
            finished.append(cell.folder)

    cells = plan_cells(small(), RULES, tmp_path / "ray")
    runs = compare_cells(cells, executor="ray", report=report)
    assert [run.folder for run in runs] == [cell.folder for cell in cells]
    assert sorted(finished) == sorted(cell.folder for cell in cells)
    compare_small(tmp_path / "here", RULES, jobs=2)
    same(tmp_path / "here", tmp_path / "ray")
    with pytest.raises(ConfigurationError, match="already holds this run"):
        compare_cells(cells, executor="ray")
    before = {run.folder: (run.folder / "result.json").stat().st_mtime_ns for run in runs}
    compare_cells(cells, executor="ray", resume=True)  # finished runs are not repeated
    assert before == {run.folder: (run.folder / "result.json").stat().st_mtime_ns for run in runs}


@pytest.mark.slow
def test_one_run_at_a_time_and_one_that_diverges(cluster: Any, tmp_path: Path) -> None:
    experiment = small({"training.rate": 1e30, "seeds": 1})
    cells = plan_cells(experiment, ["fedavg", "fedsteer:practical"], tmp_path)
    bad, good = compare_cells(cells, executor="ray", jobs=1)
    assert not bad.finished and "sent a non-finite update" in str(bad.failure)
    assert good.finished and good.failure is None


@pytest.mark.slow
def test_ctrl_c_brings_everything_home_and_processes_continue(cluster: Any, tmp_path: Path) -> None:
    cells = plan_cells(long(), ["fedavg", "mifa"], tmp_path / "stopped")
    seen: set[Path] = set()

    def report(cell: Cell, progress: Progress | None) -> None:
        if progress is not None:
            seen.add(cell.folder)
            if len(seen) == 2:
                seen.add(tmp_path)  # once
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        compare_cells(cells, executor="ray", report=report)
    # One may be through before the process of the other has started.
    home = [c for c in cells if (c.folder / CHECKPOINT).exists() or Run(c.folder).finished]
    assert {cell.folder for cell in home} >= seen - {tmp_path}
    assert not all(Run(cell.folder).finished for cell in cells)
    compare_cells(cells, jobs=1, resume=True)
    compare_cells(plan_cells(long(), ["fedavg", "mifa"], tmp_path / "whole"), jobs=1)
    same(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.slow
def test_a_lost_worker_resumes_from_its_checkpoint(
    cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(task, "SEND_EVERY", 0.0)
    experiment = long()
    cells = plan_cells(experiment.changed({"seeds": 1}), ["fedsteer"], tmp_path / "lost")
    killed: list[int] = []
    after: list[int] = []

    def report(cell: Cell, progress: Progress | None) -> None:
        if killed:
            after.append(0 if progress is None else progress["round"])
        elif progress is not None and (cell.folder / CHECKPOINT).exists():
            killed.extend(workers())
            for process in killed:
                os.kill(process, signal.SIGKILL)

    compare_cells(cells, executor="ray", report=report)
    assert len(killed) == 1
    assert after.pop() == 0  # it came to its end
    assert min(after) > 20, "it started over instead of resuming from its checkpoint"
    assert capsys.readouterr().out == ""
    compare_cells(plan_cells(experiment.changed({"seeds": 1}), ["fedsteer"], tmp_path / "whole"))
    same(tmp_path / "whole", tmp_path / "lost")


@pytest.mark.slow
def test_a_damaged_run_stops_no_other(cluster: Any, tmp_path: Path) -> None:
    cells = plan_cells(small({"seeds": 1}), ["fedavg", "mifa"], tmp_path)
    compare_cells(cells, executor="ray")
    for cell in cells:
        (cell.folder / "result.json").unlink()
    (cells[0].folder / CHECKPOINT).write_bytes(b"torn")
    bad, good = compare_cells(cells, executor="ray", resume=True)
    assert good.finished and not bad.finished
    assert f"{cells[0].folder / CHECKPOINT} is not a checkpoint" in str(bad.failure)


@pytest.mark.slow
def test_more_threads_than_any_machine_has(cluster: Any, tmp_path: Path) -> None:
    cells = plan_cells(small({"run.threads": 64}), ["fedavg"], tmp_path)
    with pytest.raises(ConfigurationError, match=r"--set run\.threads=2 makes it fit"):
        compare_cells(cells, executor="ray")


@pytest.mark.slow
def test_a_cluster_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray").shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(ConfigurationError, match=r"no Ray cluster at 127\.0\.0\.1:9: .*refused"):
        compare_cells(plan_cells(small(), ["fedavg"], tmp_path), executor="ray")


def workers() -> list[int]:
    """Processes below this one that carry out a run for Ray."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
            names[int(folder.name)] = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found = []
    for process, name in names.items():
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and name.startswith(b"ray::carry_out"):
            found.append(process)
    return found
