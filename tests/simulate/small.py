"""A comparison that takes milliseconds: made-up images, twelve clients, a tiny network."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedsteer.records import Run, read_checkpoint
from fedsteer.records.names import MODEL
from fedsteer.simulate.cells import Cell, find_rule, plan_cells
from fedsteer.simulate.compare import compare_cells
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.loop import Simulation
from fedsteer.simulate.runner import Interrupted, run_cell
from fedsteer.simulate.world import build_world

SETTINGS: dict[str, Any] = {
    "name": "small",
    "data.name": "made",
    "data.options": {"points": 200, "side": 4},
    "partition.clients": 12,
    "partition.points": 10,
    "partition.gamma": 0.75,
    "participation.weak": 0.3,
    "participation.powerful": 0.7,
    "model.options": {"hidden": [6]},
    "training.epochs": 2,
    "training.batch": 4,
    "run.rounds": 6,
    "run.evaluate_every": 2,
    "run.checkpoint_every": 2,
    "run.watch": [1, 5],
    "seeds": 2,
    "options.fedsteer": {"core_size": 3, "cycles": 1},
    "options.cluster_fedvarp": {"cluster_count": 3, "cycles": 1},
}
AS_TOML = """
name = "small"
seeds = 2
data = { name = "made", options = { points = 200, side = 4 } }
partition = { clients = 12, points = 10, gamma = 0.75 }
participation = { weak = 0.3, powerful = 0.7 }
model = { options = { hidden = [6] } }
training = { epochs = 2, batch = 4 }
run = { rounds = 6, evaluate_every = 2, checkpoint_every = 2, watch = [1, 5] }
options.fedsteer = { core_size = 3, cycles = 1 }
options.cluster_fedvarp = { cluster_count = 3, cycles = 1 }
"""
EXACT = ("rounds.jsonl", "clients.jsonl", "arrays.safetensors")


def small(settings: dict[str, Any] | None = None) -> Experiment:
    """The experiment, with settings on top."""
    return Experiment().changed(SETTINGS).changed(settings or {})


def cell_of(experiment: Experiment, rule: str, folder: Path, seed: int = 0) -> Cell:
    """One run."""
    return Cell(experiment=experiment, rule=find_rule(experiment, rule), seed=seed, folder=folder)


def simulation(experiment: Experiment, entry: str = "fedavg", seed: int = 0) -> Simulation:
    """A run in memory."""
    found = find_rule(experiment, entry)
    world = build_world(experiment, seed, found.everybody)
    return Simulation(world, found.build(experiment, seed))


def run_small(
    folder: Path, entry: str = "fedavg", seed: int = 0, *, resume: bool = False, **settings: Any
) -> Run:
    """A run on disk; `settings` with "__" for the dot."""
    experiment = small({key.replace("__", "."): value for key, value in settings.items()})
    return run_cell(cell_of(experiment, entry, folder, seed), resume=resume)


def stopped_run(
    folder: Path, after: int, entry: str = "fedsteer", seed: int = 0, **settings: Any
) -> None:
    """A run on disk that was interrupted after that many rounds; it may have begun."""
    experiment = small({key.replace("__", "."): value for key, value in settings.items()})
    seen = itertools.count(1)
    with suppress(Interrupted):
        run_cell(
            cell_of(experiment, entry, folder, seed),
            resume=True,
            stop=lambda: next(seen) == after,
        )
    assert not Run(folder).finished


def compare_small(
    out: Path, rules: list[str], *, jobs: int = 1, resume: bool = False, **settings: Any
) -> list[Run]:
    """A comparison on disk."""
    experiment = small({key.replace("__", "."): value for key, value in settings.items()})
    return compare_cells(plan_cells(experiment, rules, out), jobs=jobs, resume=resume)


def exact_files(folder: Path) -> dict[str, bytes]:
    """What must not differ by a bit between two runs that should be the same."""
    found = {n: (folder / n).read_bytes() for n in EXACT if (folder / n).exists()}
    return found | {"model": model_of(folder).tobytes()}


def model_of(folder: Path) -> Any:
    """The model in the last checkpoint."""
    return np.asarray(read_checkpoint(folder / MODEL)[0]["model"])


def killed(folder: Path, entry: str, after: float, **settings: Any) -> bool:
    """Resume a run in another process and SIGKILL it; False if it finished first."""
    # A server that has imported everything forks children quickly and without any threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.simulate.small"])
    child = context.Process(target=_continue, args=(folder, entry, settings))
    child.start()
    child.join(after)
    if child.is_alive():
        assert child.pid is not None
        with suppress(ProcessLookupError):  # it came to its end this very moment
            os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL), f"the run failed: {child.exitcode}"
    return child.exitcode != 0


def _continue(folder: Path, entry: str, settings: dict[str, Any]) -> None:
    run_small(folder, entry, resume=True, **settings)
