"""Runs on one GPU: cells of the same kind of work together, as many at once as memory holds.

Rules and records are the work of a CPU core, while the GPU waits. With several `jobs` the cells are
shared out to that many processes by seed, and one trains while the others do their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from fedsteer.simulate.cells import Cell, Report
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.lockstep import alike, batches_that_fit, run_together
from fedsteer.simulate.runner import OpenRun, Progress
from fedsteer.simulate.world import build_world
from fedsteer.training.orders import Together

ROOM = 0.8
"""Share of the free memory that states may fill."""


def run_in_lockstep(
    cells: Sequence[Cell],
    resume: bool,
    tell: Report,
    jobs: int = 1,
    stop: Callable[[], bool] | None = None,
) -> None:
    """All cells; `Interrupted` after a clean stop. `jobs` processes share the memory."""
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 1 << 34
    room = int(ROOM * free / jobs)
    left = list(cells)
    while left:
        first = left[0].experiment
        world = build_world(first, 0)
        part = [cell for cell in left if alike(cell.experiment, first)]
        clients = max(cell.experiment.partition.clients for cell in part)
        part = part[: batches_that_fit(world.network.dim, clients, len(part), room)]
        taken = {cell.folder for cell in part}
        left = [cell for cell in left if cell.folder not in taken]
        runs = [OpenRun(c.experiment, c.entry, c.seed, c.folder, resume) for c in part]
        run_together(runs, partial(_tell_place, tell, part), stop)
        for cell in part:
            tell(cell, None)


def takes_orders(experiment: Experiment) -> bool:
    """Whether the engine of these runs can train clients of several together."""
    return isinstance(build_world(experiment, 0).engine, Together)


def shares(cells: Sequence[Cell], jobs: int) -> list[list[int]]:
    """Places of the cells for every process: whole seeds, in turn, and none without any."""
    worlds: dict[tuple[str, int], int] = {}
    found: list[list[int]] = [[] for _ in range(jobs)]
    for place, cell in enumerate(cells):
        world = worlds.setdefault((cell.experiment.name, cell.seed), len(worlds))
        found[world % jobs].append(place)
    return [share for share in found if share]


def _tell_place(tell: Report, part: Sequence[Cell], place: int, progress: Progress) -> None:
    tell(part[place], progress)
