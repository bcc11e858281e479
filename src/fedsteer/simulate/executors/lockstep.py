"""Runs on one GPU round by round together, so that their clients are trained at once.

Ten clients of one run leave a GPU idle; ten clients each of a hundred runs do not. Runs may differ
in rule, seed, partition and participation; network, images and local training must be the same.
Every run keeps its own records and checkpoints, as if it had been alone. As many runs go together
as memory holds.

Rules and records are the work of a CPU core, during which the GPU waits. With several `jobs`, the
cells are split among that many processes by seed, and one trains while the others do their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from operator import attrgetter

import torch

from fedsteer.errors import ConfigurationError, RoundRefused
from fedsteer.simulate.cells import Cell
from fedsteer.simulate.runner import Interrupted, OpenRun, Report, open_run, polite
from fedsteer.simulate.world import build_world
from fedsteer.training import Engine

WORK = attrgetter("data", "model", "training", "run.device", "run.precision")
"""What runs in lock-step have in common."""
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
        part = [cell for cell in left if WORK(cell.experiment) == WORK(first)]
        clients = max(cell.experiment.partition.clients for cell in part)
        part = part[: batches_that_fit(world.network.dim, clients, len(part), room)]
        left = [cell for cell in left if cell not in part]
        run_together([open_run(cell, resume) for cell in part], tell, stop)
        for cell in part:
            tell(cell, None)


def shares(cells: Sequence[Cell], jobs: int) -> list[list[int]]:
    """Places of the cells for every process: whole seeds, in turn; empty shares are left out."""
    worlds: dict[tuple[str, int], int] = {}
    found: list[list[int]] = [[] for _ in range(jobs)]
    for place, cell in enumerate(cells):
        world = worlds.setdefault((cell.experiment.name, cell.seed), len(worlds))
        found[world % jobs].append(place)
    return [share for share in found if share]


def run_together(
    runs: Sequence[OpenRun | None],
    tell: Report = lambda cell, progress: None,
    stop: Callable[[], bool] | None = None,
) -> None:
    """All open runs to their end; `Interrupted` after a clean stop, which `stop` can ask for."""
    left = [run for run in runs if run is not None]
    if not left:
        return
    with ExitStack() as files, polite(stop) as stopping:
        for run in left:
            files.callback(run.records.close)
        engine = _shared_engine(left)
        while left:
            left = _one_round(engine, left, tell)
            if left and stopping():
                for run in left:
                    run.save()
                raise Interrupted


def batches_that_fit(dim: int, clients: int, count: int, room: int) -> int:
    """How many of `count` runs to take at once if each may hold an update of every client.

    If not all fit, they are taken in batches of about equal size.
    """
    most = max(1, room // (4 * dim * (clients + 8)))
    batches = -(-count // most)
    return max(1, -(-count // max(1, batches)))


def _one_round(engine: Engine, runs: list[OpenRun], tell: Report) -> list[OpenRun]:
    """One round of every run; those that have further rounds."""
    asked = [run.simulation.ask() for run in runs]
    trained = engine.train_orders([order for one in asked for order in one.orders])
    left, first = [], 0
    for run, one in zip(runs, asked, strict=True):
        last = first + len(one.orders)
        part = trained.part(slice(first, last))
        first = last
        try:
            result = run.simulation.absorb(one, part)
        except RoundRefused as error:  # one run that diverges must not cost the others
            run.fail(error)
            continue
        run.keep(result)
        tell(run.cell, run.progress(result))
        if run.simulation.finished:
            run.finish()
        else:
            left.append(run)
    return left


def _shared_engine(runs: Sequence[OpenRun]) -> Engine:
    """Any of their engines, if all of them do the same kind of work."""
    first, *others = [run.simulation.world for run in runs]
    if not first.engine.joins_runs:
        raise ConfigurationError("lock-step needs run.engine=batched or captured")
    for world in others:
        if WORK(world.experiment) != WORK(first.experiment):
            raise ConfigurationError("runs in lock-step must share data, model and training")
        if world.engine.name != first.engine.name:
            raise ConfigurationError(
                f"some of these runs began with the engine {world.engine.name!r}, others with "
                f"{first.engine.name!r}: --set run.engine= chooses one for all that are new"
            )
    return first.engine
