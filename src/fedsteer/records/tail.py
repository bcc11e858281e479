"""Follows a growing `.jsonl` file: every look reads what came since the one before."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final


@final
class Tail:
    """Reads whole rows only; a line that is still being written waits for its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0  # lines that are no rows
        self._end = 0  # of the last line read
        self._last = b""
        self._seen: tuple[int, ...] = ()  # signature at the last look

    def replaced(self) -> bool:
        """Whether what was read is no longer there: a resumed run cuts its files back."""
        if not self._end or signature(self.path) == self._seen:
            return False
        try:
            with self.path.open("rb") as file:
                file.seek(self._end - len(self._last))
                return file.read(len(self._last)) != self._last
        except FileNotFoundError:
            return True

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows that came since the last look."""
        seen = signature(self.path)
        if seen == self._seen:
            return
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._end, self._last = self._end + len(line), line
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                if isinstance(row, dict):
                    yield row
                else:
                    self.damaged += 1
        self._seen = seen


def signature(path: Path) -> tuple[int, ...]:
    """What changes when a file grows or is replaced; empty if there is no such file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns
