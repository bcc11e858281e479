"""One run as a task of a Ray cluster: the side of the machine that computes.

The run takes place in a folder of that machine. Now and then the task sends word home, and its
files where there is a new checkpoint; the answer says whether to stop.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from fedsteer import __version__
from fedsteer.errors import FedsteerError
from fedsteer.records.names import CHECKPOINT
from fedsteer.simulate.cells import Cell
from fedsteer.simulate.executors.parcel import Parcel, pack, unpack
from fedsteer.simulate.runner import GAVE_UP, Interrupted, Progress, run_cell

TELL_EVERY = 0.5
"""Seconds between two messages of a run."""
SEND_EVERY = 20.0
"""Seconds between two parcels: what the loss of a machine costs at most, beside the rounds since
the last checkpoint."""


@dataclass(frozen=True)
class Task:
    """What is sent out. `attempt` tells a run from one that was given up for lost."""

    number: int
    attempt: int
    cell: Cell
    torch_threads: int
    parcel: Parcel | None  # an interrupted run to go on with
    send_every: float
    version: str = __version__


@dataclass(frozen=True)
class Message:
    """What is told on the way. `files` holds a reference to a parcel, which may be large."""

    number: int
    attempt: int
    progress: Progress | None = None
    files: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What comes back: the files, or why there are none."""

    parcel: Parcel | None
    stopped: bool = False
    problem: str = ""


class Office:
    """An actor that keeps messages until they are fetched, and knows whether to stop."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.stopping = False

    def tell(self, message: Message) -> bool:
        """A message; the answer is whether to stop."""
        self.messages.append(message)
        return self.stopping

    def take(self) -> list[Message]:
        """All messages since the last time."""
        taken, self.messages = self.messages, []
        return taken

    def stop(self) -> None:
        """From now on every message is answered by "stop"."""
        self.stopping = True


class Correspondent:
    """Watches a run: tells the office where it stands, learns from it whether to stop."""

    def __init__(self, task: Task, folder: Path, office: Any) -> None:
        self.task, self.checkpoint, self.office = task, folder / CHECKPOINT, office
        self.told = self.sent = monotonic()
        self.known = self._stamp()
        self.answers: list[Any] = []
        self.stopping = False
        self._tell()

    def watch(self, progress: Progress) -> None:
        """After every round."""
        import ray

        now = monotonic()
        if now - self.told < min(TELL_EVERY, self.task.send_every):
            return
        self.told = now
        files: tuple[Any, ...] = ()
        if now - self.sent >= self.task.send_every and self._stamp() != self.known:
            self.sent, self.known = now, self._stamp()
            files = (ray.put(pack(self.checkpoint.parent)),)
        self._tell(progress, files)

    def stop(self) -> bool:
        """Whether an answer said so; never waits for one."""
        import ray

        if self.answers:
            arrived, self.answers = ray.wait(self.answers, num_returns=len(self.answers), timeout=0)
            self.stopping = self.stopping or any(ray.get(arrived))
        return self.stopping

    def _tell(self, progress: Progress | None = None, files: tuple[Any, ...] = ()) -> None:
        message = Message(self.task.number, self.task.attempt, progress, files)
        self.answers.append(self.office.tell.remote(message))

    def _stamp(self) -> int:
        """Changes with every checkpoint."""
        return self.checkpoint.stat().st_mtime_ns if self.checkpoint.exists() else 0


def carry_out(task: Task, office: Any) -> Outcome:
    """The whole run, on the machine that Ray chose."""
    if task.version != __version__:
        return _problem(f"has fedsteer {__version__}, and the runs are of {task.version}")
    cell, stopped = task.cell, False
    with TemporaryDirectory(prefix="fedsteer-") as name:
        folder = Path(name)
        try:
            unpack(task.parcel or {}, folder)
            correspondent = Correspondent(task, folder, office)
            run_cell(
                replace(cell, folder=folder),
                resume=True,
                watch=correspondent.watch,
                stop=correspondent.stop,
                torch_threads=task.torch_threads,
            )
        except GAVE_UP:
            pass  # the reason is in the parcel
        except Interrupted:
            stopped = True
        except (FedsteerError, OSError) as error:
            return _problem(f"says: {error}")
        return Outcome(pack(folder), stopped)


def _problem(words: str) -> Outcome:
    return Outcome(None, problem=f"{platform.node()}, a machine of the Ray cluster, {words}")
