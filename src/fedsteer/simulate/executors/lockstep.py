"""Runs on one GPU round by round together, so that their clients are trained at once.

Ten clients of one run leave a GPU idle; ten clients each of a hundred runs do not. Network, images
and local training must be the same. Every run keeps its own records, as if it had been alone.

Rules and records are the work of a CPU core, during which the GPU waits. With several `jobs`, the
cells are split among that many processes by seed, and one trains while the others do their sums.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from operator import attrgetter

import numpy as np
import torch

from fedsteer.errors import ConfigurationError, DamagedRun
from fedsteer.simulate.cells import Cell
from fedsteer.simulate.runner import OpenRun, Report, give_up, open_run, run_together
from fedsteer.simulate.world import build_world

# What runs in lock-step have in common.
WORK = attrgetter("data", "model", "training", "run.device", "run.precision")
ROOM = 0.8  # share of the free memory that states may fill


def run_in_lockstep(
    cells: Sequence[Cell], report: Report, jobs: int = 1, stop: Callable[[], bool] | None = None
) -> None:
    """All cells, resumed if they have begun; `Interrupted` after a clean stop.

    `jobs` processes share the memory. Runs whose engine cannot join them take turns.
    """
    left = list(cells)
    while left:
        part = [cell for cell in left if WORK(cell.experiment) == WORK(left[0].experiment)]
        part = part[: _most_together(part, jobs)]
        left = [cell for cell in left if cell not in part]
        runs: list[OpenRun] = []
        with ExitStack() as files:
            for cell in part:
                try:
                    run = open_run(cell, resume=True)
                except DamagedRun as error:  # it must not cost the others
                    give_up(cell.folder, str(error))
                    continue
                if run is not None:
                    files.callback(run.records.close)
                    runs.append(run)
            engines = sorted({run.simulation.world.engine.name for run in runs})
            if len(engines) > 1:
                raise ConfigurationError(
                    f"these runs began with different engines ({', '.join(engines)}): "
                    "--set run.engine= chooses one for all that are new"
                )
            run_together(runs, report, stop)
        for cell in part:
            report(cell, None)


def shares(cells: Sequence[Cell], jobs: int) -> list[list[Cell]]:
    """The cells of every process: whole seeds, in turn; empty shares are left out."""
    worlds: dict[tuple[str, int], int] = {}
    found: list[list[Cell]] = [[] for _ in range(jobs)]
    for cell in cells:
        world = worlds.setdefault((cell.experiment.name, cell.seed), len(worlds))
        found[world % jobs].append(cell)
    return [share for share in found if share]


def _most_together(cells: Sequence[Cell], jobs: int) -> int:
    if len(cells) == 1:
        return 1
    world = build_world(cells[0].experiment, 0)
    if not world.engine.joins_runs:
        return 1
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 1 << 34
    clients = [cell.experiment.partition.clients for cell in cells]
    return first_batch(world.network.dim, clients, int(ROOM * free / jobs))


def first_batch(dim: int, clients: Sequence[int], room: int) -> int:
    """How many of the first runs to take at once; `clients` are the clients of each.

    Each run may hold an update of every client. If not all fit, batches are about equally large.
    """
    needs = np.cumsum([4 * dim * (count + 8) for count in clients])
    batches = -(-int(needs[-1]) // max(1, room))
    return max(1, int(np.searchsorted(needs, needs[-1] / batches, side="right")))
