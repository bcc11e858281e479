"""What a reader may do with any input: return, or raise an error of ours in one line that names the
file, in little time and memory."""

from __future__ import annotations

import resource
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType

from fedsteer.errors import FedsteerError
from tests.fuzz.mutate import mutated_bytes, mutated_document

SECONDS = 5.0  # of the processor
MEMORY = 300 << 20  # beyond what the process had


@dataclass(frozen=True)
class Reader:
    """A reader, and inputs that it accepts."""

    read: Callable[[bytes, Path], object]  # writes the input to a file in the folder, and reads it
    seeds: Callable[[], list[bytes]]
    document: bool = False  # inputs are JSON, whatever the reader makes of it
    names: bool = True  # errors name a file in the folder

    def mutated(self, data: bytes, random: Random) -> bytes:
        return (mutated_document if self.document else mutated_bytes)(data, random)


class Unfit(Exception):
    """No input for this reader: the harness could make nothing of it."""


class Broken(AssertionError):
    """A reader did what it must not do. `where` tells finds apart."""

    def __init__(self, problem: str, where: str) -> None:
        super().__init__(f"{problem} ({where})")
        self.where = where


class Stuck(BaseException):
    """It took too long. Not an `Exception`: a reader would take it for the file's fault."""


def judge(reader: Reader, data: bytes, folder: Path) -> str:
    """What the reader says against the input, if anything; `Broken` if it did what it must not."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    before = _peak()
    signal.signal(signal.SIGPROF, _stuck)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    began = time.process_time()
    try:
        reader.read(data, folder)
        said = ""
    except FedsteerError as error:
        said = str(error)
        _one_line(said, str(folder) if reader.names else "", error)
    except (Unfit, Broken):
        raise
    except (Exception, Stuck) as error:
        raise Broken(f"{type(error).__name__}: {error}"[:200], _where(error)) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if (seconds := time.process_time() - began) > SECONDS:
        raise Broken(f"took {seconds:.1f} seconds", "slow")
    if (more := _peak() - before) > MEMORY:
        raise Broken(f"took {more >> 20} MiB", "memory")
    return said


def _one_line(said: str, place: str, error: FedsteerError) -> None:
    if not said.isprintable() or len(said) > 1000:
        raise Broken(f"not one line: {said[:200]!r}", _where(error))
    if place not in said:
        raise Broken(f"names no file: {said}", _where(error))


def _where(error: BaseException) -> str:
    """The innermost line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "fedsteer/" in frame.filename] or frames
    return f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _stuck(number: int, frame: FrameType | None) -> None:
    raise Stuck(f"more than {SECONDS:g} seconds")
