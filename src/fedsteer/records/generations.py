"""The last two checkpoints of a run: if the newer one is damaged, the older one is there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, final

from fedsteer.errors import DataError
from fedsteer.records.checkpoint import Pieces, read_pieces, remove_parts, write_checkpoint
from fedsteer.records.files import fsync_folder
from fedsteer.records.names import BEFORE, CHECKPOINT
from fedsteer.steering.state import Arrays


class Generation(NamedTuple):
    """The checkpoint to continue from."""

    pieces: Pieces
    older: bool
    problem: str  # why it is not the newer one, or not whole; empty: it is


@final
class Generations:
    """Writes checkpoints of a folder, and reads the better one of two."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._newer, self._older = folder / CHECKPOINT, folder / BEFORE
        self._sound = True  # whether the newer one may become the older one
        self._damaged = False  # whether files may be damaged
        self._parts: set[str] = set()  # of the one that will be the older one

    def write(self, arrays: Arrays, meta: dict[str, Any], *, in_parts: bool = False) -> None:
        """Write a new one; what was the newer one is the older one from now on.

        A damaged one is replaced instead. The old files are renamed, not written again.
        """
        if in_parts and self._damaged:  # else a part of the same content would not be written again
            remove_parts(self._newer, keep=self._parts)
        before = self._older if self._sound else None
        parts = write_checkpoint(self._newer, arrays, meta, in_parts=in_parts, before=before)
        if in_parts:
            remove_parts(self._newer, keep=parts | self._parts)
        self._sound, self._damaged, self._parts = True, False, parts

    def read(self, check: Callable[[Path, dict[str, Any]], None]) -> Generation | None:
        """The one that has lost the least, the newer one if they are equal; None: there is none.

        check   raises a `DataError` if a run cannot continue from a file and this meta; whatever
                else it raises is raised
        """
        if not any(path.exists() for path in (self._newer, self._older)):
            return None
        best: Generation | None = None
        problems: list[str] = []
        for path in (self._newer, self._older):
            if path == self._older and not path.exists():
                break
            try:
                found = read_pieces(path)
                check(path, found.meta)
            except DataError as error:
                problems.append(str(error))
                continue
            if best is None or len(found.lost) < len(best.pieces.lost):
                why = problems[0] if problems else found.problem
                best = Generation(pieces=found, older=path == self._older, problem=why)
            if not found.lost:
                break
            problems.append(found.problem)
        if best is None:
            raise DataError("; ".join(problems))
        self._sound, self._damaged = not best.older, bool(best.problem)
        self._parts = best.pieces.parts
        return best

    def forget(self) -> None:
        """Remove both."""
        if there := [path for path in (self._newer, self._older) if path.exists()]:
            for path in there:
                path.unlink(missing_ok=True)
            fsync_folder(self.folder)
        self._sound, self._damaged, self._parts = True, False, set()
