"""One writer per folder: a lock of the system, or a file that names the writer where there is none.

The system drops `flock` when a process ends, even by a kill. Some file systems (NFS without its
lock service, some of containers) do not have it. There the writer makes `writer.lock`, and removes
it at its end. After a kill the file stays; the next writer replaces it if it can tell that the
process is gone, and otherwise says which file to remove.
"""

import errno
import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fedsteer.errors import ConfigurationError
from fedsteer.records.files import json_object, look, utc_now, write_atomically

LOCK = "writer.lock"
HELD = (errno.EAGAIN, errno.EACCES)
"""What `flock` answers if another process has the lock."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What it answers if the file system has no locks."""
PAUSE = 0.2  # seconds between two attempts
SETTLE = 1.0
"""Seconds in which another process that replaced the same file would have done so."""


def claim(file: IO[bytes], folder: Path, patience: float) -> Callable[[], None]:
    """Keep other processes from writing to `folder`, of which `file` is one file.

    Returns what lets go, besides closing the file. A process that holds the folder may be about to
    end because its parent was killed, so wait up to `patience` seconds.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # pragma: no cover - not a POSIX system
        return lambda: None
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lambda: None
        except OSError as error:
            if error.errno in NO_LOCKS:
                return _claim_by_name(folder / LOCK, deadline)
            if error.errno not in HELD:
                raise OSError(error.errno, error.strerror, file.name) from None
        _wait(
            deadline,
            f"another process is still writing to {folder}; wait until it ends or choose another "
            "folder",
        )


def _claim_by_name(path: Path, deadline: float) -> Callable[[], None]:
    ours = _this_process()
    while not _made(path, ours):
        if _has_ended(found := _read(path)):
            own = path.with_name(f"{LOCK}.{ours['pid']}")  # others may do the same
            write_atomically(own, json.dumps(ours).encode())
            os.replace(own, path)
            time.sleep(SETTLE)  # of several that saw it ended, the last to write remains
            if _read(path) == ours:
                break
            continue
        who = f"names process {look(found, 'pid')} of {look(found, 'host')} as the writer of"
        if not found:
            who = "does not say which process writes to"
        _wait(deadline, f"{path} {who} {path.parent}; if that no longer runs, remove this file")

    def let_go() -> None:
        if _read(path) == ours:
            path.unlink(missing_ok=True)

    return let_go


def _wait(deadline: float, words: str) -> None:
    if time.monotonic() >= deadline:
        raise ConfigurationError(words)
    time.sleep(PAUSE)


def _made(path: Path, content: dict[str, Any]) -> bool:
    """Whether the file was not there and is made now."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.close(handle)
    try:
        write_atomically(path, json.dumps(content).encode())
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _read(path: Path) -> dict[str, Any]:
    """What the file says; nothing if it is damaged or gone."""
    with suppress(FileNotFoundError, ValueError, RecursionError):
        return json_object(path.read_bytes())
    return {}


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {
        "pid": pid,
        "began": _began(pid),
        "host": platform.node(),
        "machine": _line("/etc/machine-id"),
        "boot": _line("/proc/sys/kernel/random/boot_id"),
        "processes": _target("/proc/self/ns/pid"),  # containers number theirs anew
        "since": utc_now(),
    }


def _has_ended(found: dict[str, Any]) -> bool:
    """Whether it is certain that the process of this lock is gone."""
    here = _this_process()
    if not isinstance(found.get("pid"), int):
        return False
    if any(found.get(key) != here[key] for key in ("host", "machine")):
        return False
    if found.get("boot") != here["boot"]:  # without a number of its own, it may be another machine
        return bool(here["machine"] and here["boot"] and found.get("boot"))
    if found.get("processes") != here["processes"]:
        return False
    try:
        os.kill(found["pid"], 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # of another user
    return _began(found["pid"]) != found.get("began")  # its number was given anew


def _began(pid: int) -> str:
    """When this process began, in ticks since boot; empty if that is unknown or it has ended."""
    _, _, after_name = _line(f"/proc/{pid}/stat").rpartition(") ")
    state, *fields = after_name.split() or [""]
    return fields[18] if len(fields) > 18 and state not in "ZX" else ""


def _line(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
