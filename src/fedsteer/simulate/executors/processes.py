"""Runs in parallel processes of this machine."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from queue import Empty
from typing import Any

from fedsteer.simulate.cells import Cell, Report, run_cell
from fedsteer.simulate.runner import Interrupted

_messages: Any = None  # the queue of this worker process


def run_in_processes(cells: Sequence[Cell], jobs: int, resume: bool, tell: Report) -> None:
    """All cells, `jobs` at a time; `Interrupted` after a clean stop."""
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


def _start_worker(messages: Any) -> None:
    global _messages
    _messages = messages
    # Ctrl-C reaches the whole process group: between runs a worker leaves it to the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(number: int, cell: Cell, resume: bool) -> bool:
    """Run one cell in a worker; False if it was interrupted."""
    try:
        run_cell(cell, resume, lambda progress: _messages.put((number, progress)))
    except Interrupted:
        return False
    return True


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
