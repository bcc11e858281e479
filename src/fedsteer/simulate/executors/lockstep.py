"""Runs on one GPU: cells of the same kind of work together, as many at once as memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from fedsteer.simulate.cells import Cell, Report
from fedsteer.simulate.lockstep import alike, batches_that_fit, run_together
from fedsteer.simulate.runner import OpenRun, Progress
from fedsteer.simulate.world import build_world


def run_in_lockstep(cells: Sequence[Cell], resume: bool, tell: Report) -> None:
    """All cells; `Interrupted` after a clean stop."""
    room = int(0.5 * torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 1 << 33
    left = list(cells)
    while left:
        first = left[0].experiment
        world = build_world(first, 0)
        size = batches_that_fit(world.network.dim, world.clients, len(left), room)
        part = [cell for cell in left if alike(cell.experiment, first)][:size]
        left = [cell for cell in left if cell not in part]
        runs = [OpenRun(c.experiment, c.entry, c.seed, c.folder, resume) for c in part]
        run_together(runs, partial(_tell_place, tell, part))
        for cell in part:
            tell(cell, None)


def _tell_place(tell: Report, part: Sequence[Cell], place: int, progress: Progress) -> None:
    tell(part[place], progress)
