"""Runs in lock-step are the runs they would have been alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from fedsteer.errors import ConfigurationError
from fedsteer.records import Run
from fedsteer.simulate.cells import plan_cells
from fedsteer.simulate.executors import processes
from fedsteer.simulate.executors.lockstep import batches_that_fit, run_together, shares
from fedsteer.simulate.runner import OpenRun, Progress, open_run, run_cell
from tests.simulate.small import cell_of, small

ENTRIES = ("fedavg", "fedprox", "scaffold", "fedawe", "fedsteer", "full")


def opened(
    folder: Path, name: str, seed: int, resume: bool = False, rate: float = 0.1
) -> OpenRun | None:
    experiment = small({"training.rate": rate})
    return open_run(cell_of(experiment, name, folder / f"{name}-{seed}", seed), resume)


def test_together_equals_alone(tmp_path: Path) -> None:
    runs = [opened(tmp_path / "together", entry, seed) for entry in ENTRIES for seed in (0, 1)]
    run_together(runs)
    experiment = small({"training.rate": 0.1})
    for entry in ENTRIES:
        for seed in (0, 1):
            folder = tmp_path / "alone" / f"{entry}-{seed}"
            alone = run_cell(cell_of(experiment, entry, folder, seed))
            together = Run(tmp_path / "together" / f"{entry}-{seed}")
            assert together.finished
            assert len(alone.rounds) == len(together.rounds)
            for ours, theirs in zip(together.rounds, alone.rounds, strict=True):
                assert ours["active"] == theirs["active"]
                assert ours["phase"] == theirs["phase"]
                np.testing.assert_allclose(
                    ours["delta_norm"], theirs["delta_norm"], rtol=2e-3, atol=1e-6
                )


def test_finished_runs_are_left_alone_and_the_others_end(tmp_path: Path) -> None:
    run_together([opened(tmp_path, "fedavg", 0)])
    before = (tmp_path / "fedavg-0" / "rounds.jsonl").read_bytes()
    again = opened(tmp_path, "fedavg", 0, resume=True)
    assert again is None
    run_together([again, opened(tmp_path, "fedvarp", 0)])
    assert (tmp_path / "fedavg-0" / "rounds.jsonl").read_bytes() == before
    assert Run(tmp_path / "fedvarp-0").finished


def test_unlike_work_is_refused(tmp_path: Path) -> None:
    runs = [opened(tmp_path, "fedavg", 0), opened(tmp_path, "fedavg", 1, rate=0.07)]
    with pytest.raises(ConfigurationError, match="share data, model and training"):
        run_together(runs)


def test_as_many_runs_as_memory_holds() -> None:
    assert batches_that_fit(dim=1_000, clients=92, count=50, room=4 * 1_000 * 100 * 7) == 7
    assert batches_that_fit(dim=1_000, clients=92, count=5, room=10**12) == 5
    assert batches_that_fit(dim=10**9, clients=92, count=5, room=1) == 1


def test_processes_share_the_work_by_seed(tmp_path: Path) -> None:
    experiment = replace(small(), seeds=3)
    cells = plan_cells(experiment, ["fedavg", "mifa"], tmp_path)
    assert shares(cells, 2) == [[0, 1, 4, 5], [2, 3]]
    assert shares(cells, 1) == [list(range(6))]
    assert len(shares(cells, 8)) == 3


def test_a_worker_runs_its_share_in_lockstep_and_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: SimpleQueue[list[tuple[int, Progress]]] = SimpleQueue()
    monkeypatch.setattr(processes, "_messages", messages)
    monkeypatch.setattr(processes, "_halt", SimpleNamespace(value=0))
    monkeypatch.setattr(processes, "TELL_EVERY", 0.0)
    experiment = small({"run.engine": "batched"})
    cells = plan_cells(experiment, ["fedavg", "mifa"], tmp_path / "together")[:2]
    assert processes._work([5, 7], cells, False, 2) == [5, 7]
    assert {number for number, _ in messages.get()} <= {5, 7}
    assert all(Run(cell.folder).finished for cell in cells)
