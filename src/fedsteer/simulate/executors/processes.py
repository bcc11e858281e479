"""Runs in parallel processes of this machine: one after the other, or in lock-step on a GPU.

A stop reaches all workers: the parent passes Ctrl-C or SIGTERM on, whether sent to it alone or to
its process group, and every worker finishes its round and saves it. Workers whose parent has died
do the same on their own.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from queue import Empty
from time import monotonic
from typing import Any

from fedsteer.simulate.cells import Cell
from fedsteer.simulate.executors.lockstep import run_in_lockstep
from fedsteer.simulate.runner import Interrupted, Progress, Report, polite

TELL_EVERY = 0.5  # seconds between two messages of a worker
BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

STOPS = (signal.SIGINT, signal.SIGTERM)
WITH_MASKS = hasattr(signal, "pthread_sigmask")  # Windows has none

_messages: Any = None  # the queue of this worker process
_halt: Any = None  # a byte that all share; if not 0, stop after this round
_busy = threading.Lock()  # held while a worker has a run


def run_in_processes(parts: Sequence[Sequence[Cell]], jobs: int, report: Report) -> None:
    """All parts, `jobs` at a time; `Interrupted` after a clean stop.

    The cells of a part run in one process, in lock-step on a GPU.
    """
    context = multiprocessing.get_context("spawn")
    left = deque(parts)
    running: dict[Future[None], Sequence[Cell]] = {}
    cells = {cell.folder: cell for part in parts for cell in part}
    with one_thread_each(parts[0][0].experiment.run.device), polite() as stopping:
        messages, halt = context.Queue(), context.RawValue("b", 0)
        pool = ProcessPoolExecutor(jobs, context, _start_worker, (messages, halt))
        try:
            while left or running:
                if stopping():
                    halt.value = True
                    left.clear()
                # Never more calls than workers: a call that waits in the pool cannot be stopped.
                while left and len(running) < jobs:
                    part = left.popleft()
                    with no_stops():
                        running[pool.submit(_work, part, jobs)] = part
                done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                with suppress(Empty):
                    while True:
                        for folder, progress in messages.get_nowait():
                            report(cells[folder], progress)
                for future in done:
                    future.result()
                    for cell in running.pop(future):
                        report(cell, None)
        except KeyboardInterrupt:
            raise Interrupted from None
        finally:
            halt.value = True  # after an error in one, the others finish their round and save it
            pool.shutdown(wait=True, cancel_futures=True)
        if stopping():
            raise Interrupted


@contextmanager
def no_stops() -> Iterator[None]:
    """Processes that start now receive no signals until `_start_worker`: while they still import,
    nothing there could handle one. Signals to this process arrive a little later."""
    if not WITH_MASKS:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def one_thread_each(device: str) -> Iterator[None]:
    """Beside a GPU, NumPy in processes that start now multiplies with one thread.

    Its matrices are of size k; with a hundred columns the threads of several processes would wait
    for each other most of the time. On a CPU, a run chooses its threads itself.
    """
    users_choice = any(map(os.environ.get, BLAS_THREADS))
    added = () if device == "cpu" or users_choice else BLAS_THREADS
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _start_worker(messages: Any, halt: Any) -> None:
    global _messages, _halt
    _messages, _halt = messages, halt
    messages.cancel_join_thread()  # a worker ends even if its progress is not read
    # Signals may reach the whole process group; between runs the parent handles them.
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    if WITH_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """When the parent has died, stop the current run as it would have, and exit."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _halt.value = True
    with _busy:
        os._exit(1)


def _work(cells: Sequence[Cell], jobs: int) -> None:
    """Run a part in a worker; `Interrupted` comes out of the future."""
    latest: dict[Path, Progress] = {}
    sent = -inf

    def report(cell: Cell, progress: Progress | None) -> None:
        nonlocal sent
        if progress is not None:
            latest[cell.folder] = progress
        if monotonic() - sent > TELL_EVERY:
            _messages.put(list(latest.items()))
            latest.clear()
            sent = monotonic()

    with _busy:
        run_in_lockstep(cells, report, jobs, lambda: bool(_halt.value))
