"""One run as a task of a Ray cluster: the side of the machine that computes.

Files travel as a parcel. Packing reads the checkpoints first: records appended in the meantime are
beyond their offsets and are cut off on resume. Unpacking writes them after the records, and the
result last, so a kill in between leaves a run that can be resumed or is finished.
"""

import platform
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer import __version__
from fedsteer.errors import ConfigurationError, DamagedRun, FedsteerError
from fedsteer.records.files import write_atomically
from fedsteer.records.names import (
    ARRAYS,
    BEFORE,
    CHECKPOINT,
    FAILURE,
    MANIFEST,
    MODEL,
    RESULT,
    STREAMS,
    stream_file,
)
from fedsteer.simulate.cells import Cell
from fedsteer.simulate.runner import Interrupted, Progress, give_up, run_cell

TELL_EVERY = 0.5  # seconds between two messages of a run
SEND_EVERY = 20.0
"""Seconds between two parcels. Losing a machine costs at most this, and the rounds since the last
checkpoint."""

Parcel = dict[str, NDArray[np.uint8]]
"""File name -> content; arrays, because Ray moves those between processes without copies."""
Message = tuple[int, Progress | None, tuple[Any, ...]]
"""An attempt, its progress, and at most one reference to a parcel, which may be large."""

CHECKPOINTS = (BEFORE, CHECKPOINT)
IN_ORDER = (MANIFEST, *map(stream_file, STREAMS), *CHECKPOINTS, ARRAYS, MODEL, FAILURE, RESULT)


def pack(folder: Path) -> Parcel:
    """All files of a run as they are now."""
    paths = [folder / name for name in dict.fromkeys((*CHECKPOINTS, *IN_ORDER))]
    return {path.name: np.fromfile(path, np.uint8) for path in paths if path.exists()}


def unpack(parcel: Parcel, folder: Path) -> None:
    """Make the run in `folder` what the parcel says, without an old reason to fail."""
    if FAILURE not in parcel:
        (folder / FAILURE).unlink(missing_ok=True)
    for name in IN_ORDER:
        if name in parcel:
            write_atomically(folder / name, parcel[name].data)
    if RESULT in parcel:
        for name in CHECKPOINTS:
            (folder / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Task:
    """A run to carry out. `attempt` tells it from an earlier one that was given up for lost."""

    attempt: int
    cell: Cell
    parcel: Parcel | None  # an interrupted run to resume
    send_every: float
    version: str = __version__


class Office:
    """An actor that keeps messages until they are fetched and knows whether to stop."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.stopping = False

    def tell(self, message: Message) -> bool:
        """Keep a message; the answer is whether to stop."""
        self.messages.append(message)
        return self.stopping

    def take(self) -> list[Message]:
        taken, self.messages = self.messages, []
        return taken

    def stop(self) -> None:
        self.stopping = True


class Correspondent:
    """Reports the progress of a run to the office, which answers whether to stop."""

    def __init__(self, task: Task, folder: Path, office: Any) -> None:
        self.task, self.checkpoint, self.office = task, folder / CHECKPOINT, office
        self.told = self.sent = monotonic()
        self.known = self._stamp()
        self._tell()

    def watch(self, progress: Progress) -> None:
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

    def _tell(self, progress: Progress | None = None, files: tuple[Any, ...] = ()) -> None:
        import ray

        message = self.task.attempt, progress, files
        self.stopping = ray.get(self.office.tell.remote(message))

    def _stamp(self) -> int:
        """Changes with every checkpoint."""
        return self.checkpoint.stat().st_mtime_ns if self.checkpoint.exists() else 0


def carry_out(task: Task, office: Any) -> tuple[Parcel, bool]:
    """The whole run, on the machine that Ray chose: its files, and whether it was stopped."""
    here = f"{platform.node()}, a machine of the Ray cluster,"
    if task.version != __version__:
        raise ConfigurationError(
            f"{here} has fedsteer {__version__}, but the runs need {task.version}"
        )
    stopped = False
    with TemporaryDirectory(prefix="fedsteer-") as name:
        folder = Path(name)
        try:
            unpack(task.parcel or {}, folder)
            correspondent = Correspondent(task, folder, office)
            run_cell(
                replace(task.cell, folder=folder),
                resume=True,
                watch=correspondent.watch,
                stop=lambda: correspondent.stopping,
            )
        except Interrupted:
            stopped = True
        except DamagedRun as error:
            give_up(folder, str(error).replace(str(folder), str(task.cell.folder)))
        except (FedsteerError, OSError) as error:
            raise ConfigurationError(f"{here} says: {error}") from None
        return pack(folder), stopped
