"""Many runs: every rule under every seed, with the same draws, in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from fedsteer.errors import ConfigurationError, RoundRefused, TrainingFailed
from fedsteer.records import Run
from fedsteer.simulate.entries import Entry, find_entry
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.lockstep import alike, batches_that_fit, run_together
from fedsteer.simulate.runner import Interrupted, OpenRun, Progress, run_entry
from fedsteer.simulate.world import build_world


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    experiment: Experiment
    entry: Entry
    seed: int
    folder: Path


Report = Callable[[Cell, Progress | None], None]
"""Called after a round of a cell, and with None when the cell is finished."""


def plan_cells(experiment: Experiment, rules: Sequence[str], out: Path) -> list[Cell]:
    """All cells, seed by seed, so that an interrupted comparison has whole seeds first."""
    entries: dict[str, Entry] = {}  # by folder
    for name in rules:
        entry = find_entry(experiment, name)
        same = entries.setdefault(entry.slug, entry)
        if same != entry:
            raise ConfigurationError(
                f"{same.label!r} and {entry.label!r} would share the folder {entry.slug!r}"
            )
        # A mistake in its options shows now, not after hours.
        entry.build(experiment, 0, [1.0])
    return [
        Cell(experiment, entry, seed, out / entry.slug / f"seed-{seed}")
        for seed in range(experiment.seeds)
        for entry in entries.values()
    ]


def compare_cells(
    cells: Sequence[Cell], *, jobs: int = 0, resume: bool = False, report: Report | None = None
) -> list[Run]:
    """Run all cells; raises `Interrupted` after a clean stop, with everything so far on disk."""
    tell = report or (lambda cell, progress: None)
    experiment = cells[0].experiment
    if experiment.run.device != "cpu" and jobs <= 1:
        _in_lockstep(cells, resume, tell)
        return [Run(cell.folder) for cell in cells]
    jobs = jobs or default_jobs(experiment)
    if jobs == 1 or len(cells) == 1:
        for cell in cells:
            _run(cell, resume, partial(tell, cell))
            tell(cell, None)
    else:
        _in_processes(cells, min(jobs, len(cells)), resume, tell)
    return [Run(cell.folder) for cell in cells]


def _in_lockstep(cells: Sequence[Cell], resume: bool, tell: Report) -> None:
    """On a GPU: cells of the same kind of work together, as many at once as memory holds."""
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


def default_jobs(experiment: Experiment) -> int:
    """As many processes as cores allow for the threads each run takes; one on a GPU."""
    if experiment.run.device != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // build_world(experiment, 0).threads)


def _run(cell: Cell, resume: bool, watch: Callable[[Progress], None] | None) -> None:
    # One run that diverges must not cost the others; the reason is kept in its folder.
    with suppress(RoundRefused, TrainingFailed):
        run_entry(cell.experiment, cell.entry, cell.seed, cell.folder, resume=resume, watch=watch)


_messages: Any = None  # the queue of this worker process


def _start_worker(messages: Any) -> None:
    global _messages
    _messages = messages
    # Ctrl-C reaches the whole process group: between runs a worker leaves it to the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(number: int, cell: Cell, resume: bool) -> bool:
    """Run one cell in a worker; False if it was interrupted."""
    try:
        _run(cell, resume, lambda progress: _messages.put((number, progress)))
    except Interrupted:
        return False
    return True


def _in_processes(cells: Sequence[Cell], jobs: int, resume: bool, tell: Report) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        pool = ProcessPoolExecutor(jobs, context, _start_worker, (messages,))
        try:
            futures = {
                pool.submit(_work, number, cell, resume): cell for number, cell in enumerate(cells)
            }
            for done in _as_completed(futures, messages, cells, tell):
                if not done.result():
                    raise Interrupted
                tell(futures[done], None)
        except KeyboardInterrupt:
            raise Interrupted from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _as_completed(
    futures: dict[Future[bool], Cell], messages: Any, cells: Sequence[Cell], tell: Report
) -> Iterator[Future[bool]]:
    """Futures as they end, telling progress in between."""
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
        try:
            while True:
                number, progress = messages.get_nowait()
                tell(cells[number], progress)
        except Empty:
            pass
        yield from done


def with_seeds(experiment: Experiment, seeds: int | None) -> Experiment:
    """The experiment with another number of seeds."""
    return experiment if seeds is None else replace(experiment, seeds=seeds)
