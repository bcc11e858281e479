"""Many runs: the same numbers whichever rules are compared, in one process or in several."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fedsteer.errors import ConfigurationError
from fedsteer.records import Run, find_runs
from fedsteer.simulate.cells import Cell, plan_cells
from fedsteer.simulate.compare import compare_cells, default_jobs
from fedsteer.simulate.executors.processes import BLAS_THREADS, one_thread_each
from fedsteer.simulate.runner import Interrupted, Progress
from tests.simulate.small import compare_small, exact_files, run_small, small

RULES = ["full", "fedavg", "fedsteer"]


def test_cells_are_planned_seed_by_seed(tmp_path: Path) -> None:
    cells = plan_cells(small(), ["fedavg", "fedsteer:practical"], tmp_path)
    assert [(c.rule.label, c.seed) for c in cells] == [
        ("fedavg", 0),
        ("fedsteer (practical)", 0),
        ("fedavg", 1),
        ("fedsteer (practical)", 1),
    ]
    assert cells[1].folder == tmp_path / "fedsteer-practical" / "seed-0"


def test_mistakes_show_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'fedavg:paper' is named twice"):
        plan_cells(small(), ["fedavg", "fedavg:paper"], tmp_path)
    with pytest.raises(ConfigurationError, match="did you mean 'ridge'"):
        plan_cells(small({"options.fedsteer.rigde": 1}), RULES, tmp_path)
    with pytest.raises(ConfigurationError, match="unknown rule 'fedsteerr'"):
        plan_cells(small(), ["fedavg", "fedsteerr"], tmp_path)
    experiment = small({"variants.fedavg-practical": {"rule": "fedavg"}})
    with pytest.raises(ConfigurationError, match="would share the folder 'fedavg-practical'"):
        plan_cells(experiment, ["fedavg:practical", "fedavg-practical"], tmp_path)
    with pytest.raises(ConfigurationError, match="seeds must be at least 1"):
        small({"seeds": 0})


def test_another_rule_does_not_change_the_others(tmp_path: Path) -> None:
    compare_small(tmp_path / "two", ["fedavg", "fedsteer"])
    compare_small(tmp_path / "four", ["scaffold", "fedsteer", "mifa", "fedavg"])
    for cell in ("fedavg/seed-0", "fedavg/seed-1", "fedsteer/seed-0", "fedsteer/seed-1"):
        assert exact_files(tmp_path / "two" / cell) == exact_files(tmp_path / "four" / cell)


def test_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    told: dict[str, int] = {}

    def report(cell: Cell, progress: Progress | None) -> None:
        if progress is None:
            told[f"{cell.rule.slug}/seed-{cell.seed}"] = 1

    experiment = small()
    cells = plan_cells(experiment, RULES, tmp_path / "processes")
    runs = compare_cells(cells, jobs=2, report=report)
    assert [run.folder for run in runs] == [cell.folder for cell in cells]
    assert len(told) == 6
    compare_small(tmp_path / "one", RULES)
    alone = run_small(tmp_path / "alone", "fedsteer", seed=1)
    for run in find_runs(tmp_path / "one"):
        name = run.folder.relative_to(tmp_path / "one")
        assert exact_files(run.folder) == exact_files(tmp_path / "processes" / name)
    assert exact_files(alone.folder) == exact_files(tmp_path / "one" / "fedsteer" / "seed-1")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_diverges_does_not_cost_the_others(jobs: int, tmp_path: Path) -> None:
    rules = ["fedavg", "fedsteer:practical"]
    bad, good = compare_small(tmp_path, rules, jobs=jobs, training__rate=1e30, seeds=1)
    assert not bad.finished and "sent a non-finite update" in str(bad.failure)
    assert good.finished and good.failure is None


def test_a_comparison_resumes_where_it_stopped(tmp_path: Path) -> None:
    experiment = small()
    cells = plan_cells(experiment, RULES, tmp_path / "stopped")
    seen = 0

    def report(cell: Cell, progress: Progress | None) -> None:
        nonlocal seen
        seen += 1
        if seen == 10:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        compare_cells(cells, jobs=1, report=report)
    assert 0 < sum(Run(cell.folder).finished for cell in cells) < len(cells)
    compare_cells(cells, jobs=1, resume=True)
    compare_small(tmp_path / "whole", RULES)
    for run in find_runs(tmp_path / "whole"):
        name = run.folder.relative_to(tmp_path / "whole")
        assert exact_files(run.folder) == exact_files(tmp_path / "stopped" / name)
    with pytest.raises(ConfigurationError, match="already holds this run"):
        compare_cells(cells, jobs=1)


def test_more_seeds_later(tmp_path: Path) -> None:
    compare_small(tmp_path, ["fedavg"], seeds=1)
    runs = compare_small(tmp_path, ["fedavg", "mifa"], seeds=2, resume=True)
    assert len(runs) == 4 and all(run.finished for run in runs)


def test_jobs_by_default_leave_cores_to_the_threads_of_a_run() -> None:
    cores = len(os.sched_getaffinity(0))
    assert default_jobs(small()) == cores
    assert default_jobs(small({"run.threads": 1_000})) == 1


def test_processes_beside_a_gpu_multiply_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BLAS_THREADS:
        monkeypatch.delenv(name, raising=False)

    def seen() -> list[str | None]:
        return [os.environ.get(name) for name in BLAS_THREADS]

    for device, expected in (("cuda", "1"), ("cpu", None)):
        with one_thread_each(device):
            assert seen() == [expected] * 3
        assert seen() == [None] * 3
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with one_thread_each("cuda"):
        assert seen() == ["3", None, None], "the user's choice stays"


def test_an_error_of_one_run_stops_the_others_and_is_told(tmp_path: Path) -> None:
    """They save their round; otherwise the error would show only after all have ended."""
    run_small(tmp_path / "mifa" / "seed-0", "mifa", training__rate=0.02)
    experiment = small({"run.rounds": 1_000_000, "seeds": 1})
    cells = plan_cells(experiment, ["mifa", "fedavg"], tmp_path)
    with pytest.raises(ConfigurationError, match="holds a run with another"):
        compare_cells(cells, jobs=2, resume=True)
    assert not Run(tmp_path / "fedavg" / "seed-0").finished


def test_a_variant_in_any_script_has_a_folder(tmp_path: Path) -> None:
    names = ["Моё", "我的", "Cluster_FedVARP"]
    experiment = small({"variants": {name: {"rule": "fedavg"} for name in names}})
    cells = plan_cells(experiment.changed({"seeds": 1}), names, tmp_path)
    assert [c.folder.parent.name for c in cells] == ["моё", "我的", "cluster-fedvarp"]
