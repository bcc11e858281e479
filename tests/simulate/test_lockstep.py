"""Runs in lock-step are the runs they would have been alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedsteer.errors import ConfigurationError
from fedsteer.records import Run
from fedsteer.records.files import write_json
from fedsteer.simulate.cells import Cell, plan_cells
from fedsteer.simulate.executors import processes
from fedsteer.simulate.executors.lockstep import first_batch, run_in_lockstep, shares
from fedsteer.simulate.runner import Interrupted, Progress, run_cell
from tests.files import read_json
from tests.simulate.small import cell_of, small

ENTRIES = ("fedavg", "fedprox", "scaffold", "fedawe", "fedsteer", "full")


def unheard(cell: Cell, progress: Progress | None) -> None:
    pass


def together(folder: Path, names: Sequence[str], seeds: Sequence[int]) -> None:
    experiment = small({"training.rate": 0.1})
    cells = [
        cell_of(experiment, name, folder / f"{name}-{seed}", seed)
        for name in names
        for seed in seeds
    ]
    run_in_lockstep(cells, report=unheard)


def test_together_equals_alone(tmp_path: Path) -> None:
    together(tmp_path / "together", ENTRIES, (0, 1))
    experiment = small({"training.rate": 0.1})
    for entry in ENTRIES:
        for seed in (0, 1):
            folder = tmp_path / "alone" / f"{entry}-{seed}"
            alone = run_cell(cell_of(experiment, entry, folder, seed))
            joint = Run(tmp_path / "together" / f"{entry}-{seed}")
            assert joint.finished
            assert len(alone.rounds) == len(joint.rounds)
            for ours, theirs in zip(joint.rounds, alone.rounds, strict=True):
                assert ours["active"] == theirs["active"]
                assert ours["phase"] == theirs["phase"]
                np.testing.assert_allclose(
                    ours["delta_norm"], theirs["delta_norm"], rtol=2e-3, atol=1e-6
                )


def test_runs_of_other_rates_partitions_and_participation_go_together(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [
        {"server.rate": 0.25},
        {"partition.swap_after": 2, "server.average": 3},
        {"partition.kind": "iid", "partition.clients": 16},
        {"participation.kind": "markov", "participation.mean_on": 5},
    ]
    names = [chr(ord("a") + place) for place in range(len(settings))]
    cells = [
        cell_of(small(own), "fedvarp:practical", tmp_path / name)
        for name, own in zip(names, settings, strict=True)
    ]
    heard: list[Path] = []

    def report(cell: Cell, progress: Progress | None) -> None:
        if progress is not None:
            heard.append(cell.folder)

    run_in_lockstep(cells, report=report)
    assert heard == [cell.folder for cell in cells] * 6, "round by round"
    for cell in cells:
        alone = run_cell(replace(cell, folder=tmp_path / "alone" / cell.folder.name))
        for ours, theirs in zip(Run(cell.folder).rounds, alone.rounds, strict=True):
            np.testing.assert_allclose(ours["delta_norm"], theirs["delta_norm"], rtol=2e-3)


def test_finished_runs_are_left_alone_and_the_others_end(tmp_path: Path) -> None:
    together(tmp_path, ["fedavg"], [0])
    before = (tmp_path / "fedavg-0" / "rounds.jsonl").read_bytes()
    together(tmp_path, ["fedavg", "fedvarp"], [0])
    assert (tmp_path / "fedavg-0" / "rounds.jsonl").read_bytes() == before
    assert Run(tmp_path / "fedvarp-0").finished


def test_a_run_that_diverges_does_not_cost_the_others(tmp_path: Path) -> None:
    experiment = small({"training.rate": 1e30})
    names = ["fedavg", "fedsteer:practical"]
    cells = [cell_of(experiment, name, tmp_path / name) for name in names]
    run_in_lockstep(cells, report=unheard)
    bad, good = (Run(cell.folder) for cell in cells)
    assert not bad.finished and "sent a non-finite update" in str(bad.failure)
    assert good.finished and good.failure is None


def test_unlike_engines_are_refused(tmp_path: Path) -> None:
    cells = plan_cells(small(), ["fedavg", "mifa"], tmp_path)[:2]
    with pytest.raises(Interrupted):
        run_cell(cells[0], stop=lambda: True)
    manifest = read_json(cells[0].folder / "manifest.json")
    manifest["engine"]["name"] = "sequential"
    write_json(cells[0].folder / "manifest.json", manifest)
    with pytest.raises(ConfigurationError, match=r"different engines \(batched, sequential\)"):
        run_in_lockstep(cells, report=unheard)


def test_as_many_runs_as_memory_holds() -> None:
    one = 4 * 1_000 * 100
    assert first_batch(1_000, [92] * 49, room=one * 7) == 7
    assert first_batch(1_000, [92] * 10, room=one * 4) == 3, "three batches: 3, 3 and 4"
    assert first_batch(1_000, [92] * 5, room=10**12) == 5
    assert first_batch(10**9, [92] * 5, room=1) == 1
    assert first_batch(1_000, [92] * 20 + [992] * 3, room=one * 25) == 20, "large ones apart"


def test_processes_share_the_work_by_seed(tmp_path: Path) -> None:
    experiment = replace(small(), seeds=3)
    cells = plan_cells(experiment, ["fedavg", "mifa"], tmp_path)
    assert shares(cells, 2) == [[*cells[:2], *cells[4:]], cells[2:4]]
    assert shares(cells, 1) == [cells]
    assert len(shares(cells, 8)) == 3


def test_a_worker_runs_its_share_in_lockstep_and_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: SimpleQueue[list[tuple[Path, Progress]]] = SimpleQueue()
    monkeypatch.setattr(processes, "_messages", messages)
    monkeypatch.setattr(processes, "_halt", SimpleNamespace(value=0))
    monkeypatch.setattr(processes, "TELL_EVERY", 0.0)
    experiment = small({"run.engine": "batched"})
    cells = plan_cells(experiment, ["fedavg", "mifa"], tmp_path / "together")[:2]
    processes._work(cells, 2)
    assert {folder for folder, _ in messages.get()} <= {cell.folder for cell in cells}
    assert all(Run(cell.folder).finished for cell in cells)
