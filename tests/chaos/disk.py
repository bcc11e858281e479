"""A disk that fails at a chosen call: in this process, and in those that it forks."""

from __future__ import annotations

import builtins
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final
from unittest.mock import patch

from tests.chaos.power import Ledger


@dataclass(frozen=True)
class Call:
    """Something asked of the disk; `partly` does the first half of a write."""

    kind: str  # write, fsync, rename, truncate, remove
    path: Path  # of a rename: the new name
    partly: Callable[[], Any] = lambda: None


@final
class Disk:
    """Shows `act` every call that changes something below a folder, before it is made.

    `act` gets the call and its number from 0. It may raise, or end the process.
    """

    def __init__(self, folder: Path, act: Callable[[Call, int], None]) -> None:
        self.folder, self.act = folder, act
        self.ledger = Ledger(folder)
        self._count = 0
        self._lock = threading.RLock()  # a checkpoint may be written in the background

    @contextmanager
    def patched(self) -> Iterator[None]:
        """While this lasts, files below the folder are opened, synced and renamed here."""
        real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink")}

        def fsync(handle: int) -> None:
            with self.asked("fsync", Path(os.readlink(f"/proc/self/fd/{handle}"))) as path:
                real["fsync"](handle)
                self.ledger.synced(path)

        def replace(source: Any, target: Any) -> None:
            with self.asked("rename", Path(target)) as path:
                real["replace"](source, target)
                self.ledger.renamed(Path(source), path)

        def unlink(path: Any) -> None:
            with self.asked("remove", Path(path)):
                real["unlink"](path)
                self.ledger.removed(Path(path))

        with ExitStack() as patches:
            for module in (builtins, io):
                patches.enter_context(patch.object(module, "open", self._open(io.open)))
            for function in (fsync, replace, unlink):
                patches.enter_context(patch.object(os, function.__name__, function))
            yield

    def _open(self, real: Any) -> Callable[..., Any]:
        def opens(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
            if mode not in ("wb", "ab") or not self._ours(Path(file)):
                return real(file, mode, *given, **named)
            return io.BufferedWriter(_File(self, Path(file), mode))

        return opens

    def _ours(self, path: Path) -> bool:
        return path.is_relative_to(self.folder)

    @contextmanager
    def asked(
        self, kind: str, path: Path, partly: Callable[[], Any] = lambda: None
    ) -> Iterator[Path]:
        """Around a call."""
        with self._lock:
            if self._ours(path):
                number, self._count = self._count, self._count + 1
                self.act(Call(kind=kind, path=path, partly=partly), number)
            yield path


@final
class _File(io.FileIO):
    """A file whose system calls `Disk` sees."""

    def __init__(self, disk: Disk, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._disk, self._path = disk, path
        disk.ledger.opened(path)

    def write(self, content: Any) -> int:
        half = memoryview(content)[: len(content) // 2]
        with self._disk.asked("write", self._path, lambda: io.FileIO.write(self, half)):
            return super().write(content)

    def truncate(self, size: int | None = None) -> int:
        with self._disk.asked("truncate", self._path):
            return super().truncate(size)
