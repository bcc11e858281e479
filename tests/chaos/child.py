"""A process of its own, forked from one that has imported everything: a kill costs milliseconds."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsteer.errors import FedsteerError

LONGEST = 60.0  # seconds; a run that takes longer hangs
Tell = Callable[[dict[str, Any]], None]


@dataclass
class Ending:
    """How a process ended, and what it told before that."""

    told: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    error: str = ""  # as the command line would print it
    traceback: bool = False  # whether that would be a traceback
    file: str = ""  # that the error names
    hangs: bool = False


def in_child(body: Callable[[Tell], None]) -> Ending:
    """Run this in a fork, silently; returns when that and all its own children have ended."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _run(body, writing)
    os.close(writing)
    ending = Ending()
    content, deadline = b"", time.monotonic() + LONGEST
    while not ending.hangs:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(reading, 1 << 16) if ready else None
        if part == b"":
            break
        ending.hangs = part is None
        content += part or b""
    if ending.hangs:
        os.kill(pid, signal.SIGKILL)
    os.close(reading)
    os.waitpid(pid, 0)
    for line in content.splitlines():
        said = json.loads(line)
        if "ending" in said:
            for name, value in said["ending"].items():
                setattr(ending, name, value)
        else:
            ending.told.append(said)
    return ending


def _run(body: Callable[[Tell], None], pipe: int) -> None:
    def tell(message: dict[str, Any]) -> None:
        os.write(pipe, json.dumps(message).encode() + b"\n")  # a short one arrives whole

    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        body(tell)
        tell({"ending": {"done": True}})
    except OSError as error:
        file = os.fspath(error.filename or "")
        tell({"ending": {"error": str(error.strerror or error), "file": file}})
    except FedsteerError as error:
        tell({"ending": {"error": str(error)}})
    except BaseException as error:
        tell({"ending": {"error": repr(error)[:500], "traceback": True}})
    finally:
        os._exit(0)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def files_in(folder: Path) -> set[str]:
    """Names, relative to the folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
