"""One fault in one run, the resume after it, and a comparison with a run that nothing broke."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fedsteer.errors import DataError
from fedsteer.records.names import BEFORE, CHECKPOINT, RESULT
from tests.chaos.child import Ending, Tell, in_child, kill_self
from tests.chaos.disk import Call, Disk
from tests.chaos.power import LOSSES
from tests.chaos.worlds import World

KILL = "kill"
PARENT_KILL = "kill of the parent"
FULL = "full disk"
BAD = "I/O error"
ERRORS = (FULL, BAD)


@dataclass(frozen=True)
class Strike:
    """What happens at which call."""

    fault: str  # KILL, PARENT_KILL, one of `ERRORS` or of `LOSSES`
    at: int


@dataclass(frozen=True)
class Seen:
    """A call of a run, and whether there was a checkpoint then, and one before it."""

    kind: str
    file: str
    checkpoint: bool
    two: bool


@dataclass(frozen=True)
class Result:
    """What became of a run that was hit."""

    world: str
    fault: str
    call: Seen | None  # None: the files were damaged while nothing ran
    checkpoint: bool
    equal: bool = False  # after the resume, to a run that nothing broke
    refused: bool = False  # it ended in one line that names the file
    failure: str = ""


def _checkpoint_in(folder: Path) -> bool:
    return any(any(folder.rglob(name)) for name in (CHECKPOINT, BEFORE))


def ask(world: World, folder: Path, strike: Strike | None = None) -> Ending:
    """Run it, struck or not; every call, or the one that was struck, is told."""
    target = folder / world.target

    def body(tell: Tell) -> None:
        disk = Disk(target, lambda call, number: None)
        disk.act = _Act(strike=strike, disk=disk, tell=tell)
        with disk.patched():
            world.run(folder)

    return in_child(body)


@final
@dataclass
class _Act:
    strike: Strike | None
    disk: Disk
    tell: Tell

    def __call__(self, call: Call, number: int) -> None:
        strike = self.strike
        if strike is not None and number != strike.at:
            if strike.fault == FULL and number > strike.at and call.kind == "write":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # it stays full
            return
        folder, found = self.disk.folder, {"kind": call.kind, "file": call.path.name}
        two = any(folder.rglob(BEFORE))
        self.tell(found | {"checkpoint": _checkpoint_in(folder), "two": two})
        if strike is None:
            return
        if strike.fault == PARENT_KILL:
            os.kill(os.getppid(), signal.SIGKILL)
            return
        call.partly()
        if strike.fault in ERRORS:
            number = errno.ENOSPC if strike.fault == FULL else errno.EIO
            names = [str(call.path)] if call.kind in ("rename", "remove") else []
            raise OSError(number, os.strerror(number), *names)
        if strike.fault != KILL:
            self.disk.ledger.lose(strike.fault)
        kill_self()


def calls_of(world: World, folder: Path) -> list[Seen]:
    """Everything that an unbroken run asks of the disk."""
    ending = ask(world, folder)
    assert ending.done, f"{world.name} does not even run unbroken: {ending}"
    return [Seen(**told) for told in ending.told]


def strike_and_resume(
    world: World, folder: Path, strike: Strike, whole: dict[str, Any]
) -> Result | None:
    """None: the run ended before it could be hit."""
    struck = ask(world, folder, strike)
    if not struck.told:
        return None
    call = Seen(**struck.told[0])
    failure = _wrong_with(struck, strike, call, folder)
    refused = strike.fault in ERRORS and not struck.done and not failure
    resumed = in_child(lambda tell: world.run(folder))
    differs = _difference(world, folder, whole) if resumed.done else f"resume: {resumed}"
    return Result(
        world=world.name,
        fault=strike.fault,
        call=call,
        checkpoint=call.checkpoint,
        equal=not differs,
        refused=refused,
        failure=failure or differs,
    )


def _difference(world: World, folder: Path, whole: dict[str, Any]) -> str:
    """In words; nothing if there is none."""
    try:
        left = world.left(folder)
    except (DataError, OSError) as error:
        return f"after the resume: {error}"
    if left == whole:
        return ""
    unlike = [name for name in whole if left.get(name) != whole[name]]
    names = left["names"] ^ whole["names"]
    return f"after the resume differ: {unlike}, files on one side only: {sorted(names)}"


def _wrong_with(struck: Ending, strike: Strike, call: Seen, folder: Path) -> str:
    """How the run should not have ended."""
    if struck.hangs:
        return "hangs"
    if strike.fault in LOSSES and call.two and not _checkpoint_in(folder):
        # The one before was synced, and is removed only once there is a result.
        return "" if any(folder.rglob(RESULT)) else "both checkpoints are lost"
    if strike.fault not in ERRORS or struck.done:  # a file that could not be removed may stay
        return ""
    named = Path(struck.file)
    # A file is not written before its folder is synced, nor a checkpoint before the last one is
    # renamed: the one to be written may be named, too. On a full disk, any that is written then.
    meant = {call.file.removesuffix(".new"), call.file, CHECKPOINT}
    named_well = named.name in meant or named.parent.name == call.file
    if strike.fault == FULL:
        named_well = named.is_relative_to(folder)
    if struck.traceback or "\n" in struck.error or not named_well:
        return f"ends with {struck}"
    return ""


def damage_and_resume(
    world: World, folder: Path, spoil: Callable[[], bool], whole: dict[str, Any]
) -> Result:
    """`spoil` says whether a good checkpoint is left; without one the run must be refused."""
    good = spoil()
    resumed = in_child(lambda tell: world.run(folder))
    differs = _difference(world, folder, whole) if resumed.done else f"resume: {resumed}"
    named = str(folder / CHECKPOINT) in resumed.error
    refused = bool(named and "\n" not in resumed.error and not resumed.traceback)
    right = not differs if good else refused
    return Result(
        world=world.name,
        fault="damaged checkpoint" if good else "both checkpoints damaged",
        call=None,
        checkpoint=True,
        equal=not differs,
        refused=refused,
        failure="" if right else differs or "damage that nobody noticed",
    )
