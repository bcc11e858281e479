"""Runs on a Ray cluster (docs/ray.md): the one that RAY_ADDRESS names, or a new one here.

Every cell is a task in a folder of the machine that Ray chose. Only this process writes into a
cell's own folder, so the cluster needs no shared file system, and a task that Ray gave up for lost
but that still runs behind a broken connection does no harm.

A lost task is sent out again with the last files that came back. Ray's own retries would repeat it
with its first arguments.
"""

import os
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from typing import Any

from fedsteer.errors import ConfigurationError, FedsteerError, extra, first_line
from fedsteer.records import Run
from fedsteer.simulate.cells import Cell
from fedsteer.simulate.executors import task as tasks
from fedsteer.simulate.executors.task import Office, Task, carry_out, pack, unpack
from fedsteer.simulate.runner import Interrupted, Report, polite
from fedsteer.simulate.world import build_world

LOSSES = 3
"""A run may be lost this often in a row without a checkpoint in between."""


def run_on_ray(cells: Sequence[Cell], jobs: int, tell: Report) -> None:
    """All cells, at most `jobs` at a time (0: as the cluster allows); `Interrupted` on a stop."""
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigurationError(f"--executor ray needs it: {extra('ray')}") from None
    missing = []
    for cell in cells:
        if Run(cell.folder).finished:
            tell(cell, None)
        else:
            missing.append(cell)
    if not missing:
        return
    ours = not ray.is_initialized()
    with redirect_stdout(sys.stderr):  # what Ray says about lost workers is not our output
        if ours:
            _connect(ray)
        try:
            _Sweep(ray, missing, jobs or len(missing), tell).run()
        finally:
            if ours:
                ray.shutdown()


def _connect(ray: Any) -> None:
    address = os.environ.get("RAY_ADDRESS", "local")  # "local": a new cluster, ours alone
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon and port.isdecimal():  # Ray itself tries for minutes before it gives up
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ConfigurationError(f"no Ray cluster at {address}: {first_line(error)}") from None


class _Sweep:
    """The cells that are left, from the first task to the last file."""

    def __init__(self, ray: Any, cells: Sequence[Cell], jobs: int, tell: Report) -> None:
        self.ray, self.jobs, self.tell = ray, jobs, tell
        self.waiting = deque(_with_threads(ray, cells))
        self.running: dict[Any, Task] = {}  # by reference to the result
        self.heard: set[int] = set()  # attempts that have started
        self.losses = dict.fromkeys((cell.folder for cell in cells), 0)
        self.attempts = 0
        self.end: Exception | None = None  # why nothing new is sent out
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # On this machine, so the office is lost only together with us.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        office = ray.remote(Office).options(num_cpus=0, scheduling_strategy=here)
        self.office = office.remote()
        self.remote = ray.remote(carry_out)

    def run(self) -> None:
        """Until nothing is left; after Ctrl-C, until all running tasks have come back."""
        with polite() as stopping:
            try:
                while self.waiting or self.running:
                    if stopping():
                        self._stop(Interrupted())
                    self._send_out()
                    self._listen()
            except KeyboardInterrupt:  # the second Ctrl-C does not wait
                self.end = self.end or Interrupted()
                for reference in self.running:
                    self.ray.cancel(reference, force=True)
            except self.ray.exceptions.RayError as error:
                lost = f"the Ray cluster is lost ({first_line(error)}); the same command resumes"
                raise FedsteerError(lost) from None
        if self.end is not None:
            raise self.end

    def _stop(self, reason: Exception) -> None:
        """Let running tasks save their run and come back; cancel those that have not started."""
        before = self.end
        if before is None or isinstance(before, Interrupted):
            self.end = reason  # the first error, even if it comes after a Ctrl-C
        if before is not None:
            return
        self.waiting.clear()
        self.ray.get(self.office.stop.remote())
        self._take_messages()
        for reference, task in self.running.items():
            if task.attempt not in self.heard:
                self.ray.cancel(reference)

    def _send_out(self) -> None:
        while self.waiting and len(self.running) < self.jobs:
            cell = self.waiting.popleft()
            self.attempts += 1
            task = Task(
                attempt=self.attempts,
                cell=cell,
                parcel=pack(cell.folder) if Run(cell.folder).resumable else None,
                send_every=tasks.SEND_EVERY,
            )
            gpus = {} if cell.experiment.run.device == "cpu" else {"num_gpus": 1}
            cpus = max(1, cell.torch_threads)
            remote = self.remote.options(num_cpus=cpus, max_retries=0, **gpus)
            self.running[remote.remote(task, self.office)] = task

    def _listen(self) -> None:
        ended, _ = self.ray.wait(list(self.running), num_returns=1, timeout=0.2)
        self._take_messages()
        for reference in ended:
            self._come_back(reference, self.running.pop(reference))

    def _take_messages(self) -> None:
        under_way = {task.attempt: task.cell for task in self.running.values()}
        for attempt, progress, files in self.ray.get(self.office.take.remote()):
            if attempt not in under_way:
                continue  # from a task that was given up for lost or has come back since
            self.heard.add(attempt)
            cell = under_way[attempt]
            for parcel in files:
                # If it is lost with its machine, the parcel before it counts.
                with suppress(self.ray.exceptions.RayError):
                    unpack(self.ray.get(parcel, timeout=60), cell.folder)
                    self.losses[cell.folder] = 0
            if progress is not None:
                self.tell(cell, progress)

    def _come_back(self, reference: Any, task: Task) -> None:
        try:
            parcel, stopped = self.ray.get(reference)
        except self.ray.exceptions.TaskCancelledError:
            return
        except self.ray.exceptions.RayTaskError as error:  # raised in the task: not a loss
            problem: Exception = error  # a bug
            if isinstance(error.cause, ConfigurationError):
                problem = error.cause
            if isinstance(error.cause, ModuleNotFoundError):
                problem = ConfigurationError(
                    f"the machines of the Ray cluster lack {error.cause.name!r}: each needs the "
                    "same fedsteer and what the experiment imports"
                )
            self._stop(problem)
            return
        except self.ray.exceptions.RayError as error:
            self._lose(task, error)
            return
        unpack(parcel, task.cell.folder)
        if not stopped:
            self.tell(task.cell, None)
        elif self.end is None:  # by a signal to the machine, not by us
            self.waiting.append(task.cell)

    def _lose(self, task: Task, error: Exception) -> None:
        self.losses[task.cell.folder] += 1
        if self.losses[task.cell.folder] > LOSSES:
            often = f"was lost {LOSSES + 1} times in a row: {first_line(error)}"
            self._stop(FedsteerError(f"{task.cell.folder} {often}"))
        elif self.end is None:
            self.waiting.append(task.cell)


def _with_threads(ray: Any, cells: Sequence[Cell]) -> Iterator[Cell]:
    """Every run has as many threads as on this machine, so that numbers are the same."""
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    largest = max((resources.get("CPU", 0.0) for resources in alive), default=0.0)
    usual: dict[int, int] = {}  # by experiment
    for cell in cells:
        key = id(cell.experiment)
        if Run(cell.folder).resumable:
            threads = int(Run(cell.folder).manifest["engine"]["threads"])
        elif cell.experiment.run.device != "cpu":
            threads = 0  # they do not matter
        else:
            if key not in usual:
                usual[key] = build_world(cell.experiment, 0).torch_threads
            threads = usual[key]
        if 0 < largest < threads:  # 0: machines join on demand
            raise ConfigurationError(
                f"a run has {threads} threads, and no machine of the Ray cluster has as many CPUs; "
                f"--set run.threads={largest:.0f} makes it fit"
            )
        yield replace(cell, torch_threads=threads)
