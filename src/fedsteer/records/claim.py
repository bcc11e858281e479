"""One writer at a time: two processes that append to the same records would ruin them."""

from __future__ import annotations

import time
from typing import IO, Any

from fedsteer.errors import ConfigurationError


def claim(file: IO[Any], folder: object, patience: float) -> None:
    """Hold an open file as long as it is open; nobody else can meanwhile.

    Whoever holds it now may be about to end (its parent was killed), so it is given `patience`
    seconds. The lock goes with the file, also when the process is killed; it leaves nothing behind.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # pragma: no cover - not a POSIX system
        return
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise ConfigurationError(
                    f"another process is still writing to {folder}; wait for its end or choose "
                    "another folder"
                ) from None
            time.sleep(0.2)
