"""What a loss of power leaves of a folder: what was synced, and what the disk liked of the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

CUT = "power loss, ends cut"
ZEROED = "power loss, ends zeroed"
UNDONE = "power loss, names undone"
REORDERED = "power loss, renames reordered"
LOSSES = (CUT, ZEROED, UNDONE, REORDERED)
"""What was not synced of a file is cut off, or zeros. The last two cut, too, and names are as they
were when the folder was synced, or with the last change since then alone."""


@dataclass
class _Content:
    """A file whatever its name."""

    handle: int
    synced: bytes

    def now(self) -> bytes:
        return os.pread(self.handle, os.fstat(self.handle).st_size, 0)

    def after(self, loss: str) -> bytes:
        zeros = max(0, os.fstat(self.handle).st_size - len(self.synced))
        return self.synced + (bytes(zeros) if loss == ZEROED else b"")


Names = dict[str, _Content]
Change = Callable[[Names], object]


@dataclass
class _Folder:
    synced: Names = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)  # since then

    def with_changes(self, changes: list[Change]) -> Names:
        names = dict(self.synced)
        for change in changes:
            change(names)
        return names

    def after(self, loss: str) -> Names:
        kept = {UNDONE: [], REORDERED: self.changes[-1:]}
        return self.with_changes(kept.get(loss, self.changes))


@final
class Ledger:
    """Follows what has been synced below a folder; folders themselves are never lost."""

    def __init__(self, folder: Path) -> None:
        self._contents: dict[int, _Content] = {}  # by inode, open so that none is given anew
        self._folders: dict[Path, _Folder] = {}
        for path in folder.rglob("*"):
            if path.is_file():
                content = self._content(path)
                content.synced = content.now()
                self._folder(path).synced[path.name] = content

    def _content(self, path: Path) -> _Content:
        inode = path.stat().st_ino
        if inode not in self._contents:
            handle = os.open(path, os.O_RDONLY)
            self._contents[inode] = _Content(handle=handle, synced=b"")
        return self._contents[inode]

    def _folder(self, path: Path) -> _Folder:
        return self._folders.setdefault(path.parent, _Folder())

    def opened(self, path: Path) -> None:
        content = self._content(path)
        self._folder(path).changes.append(lambda names: names.update({path.name: content}))

    def synced(self, path: Path) -> None:
        if path.is_dir():
            folder = self._folders.setdefault(path, _Folder())
            folder.synced, folder.changes = folder.with_changes(folder.changes), []
        else:
            content = self._content(path)
            content.synced = content.now()

    def renamed(self, source: Path, target: Path) -> None:
        def change(names: Names) -> None:
            if source.name in names:
                names[target.name] = names.pop(source.name)

        self._folder(target).changes.append(change)

    def removed(self, path: Path) -> None:
        self._folder(path).changes.append(lambda names: names.pop(path.name, None))

    def lose(self, loss: str) -> None:
        """Leave on disk what a loss of power would."""
        left = {
            place / name: content.after(loss)
            for place, folder in self._folders.items()
            for name, content in folder.after(loss).items()
        }
        for place in self._folders:
            for entry in list(os.scandir(place)):
                if entry.is_file():
                    Path(entry).unlink()
        for path, content in left.items():
            path.write_bytes(content)
