"""All runs at or below a folder, those that run first, and one of them in focus."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.records.names import MANIFEST
from fedsteer.watch.run import Details, LiveRun, RunState

SETTLED = 15.0
"""Seconds after which nothing more is expected of ended runs: a comparison starts the next soon."""


@dataclass(frozen=True)
class Frame:
    """What is known at one moment."""

    folder: str
    runs: list[RunState]  # the running ones first
    focus: RunState | None = None
    details: Details | None = None  # of the run in focus
    ended: bool = False  # nothing more is to come

    def having(self, *status: str) -> int:
        """How many runs have one of these states."""
        return sum(run.status in status for run in self.runs)


@final
class LiveFolder:
    """Looks again and again at the same runs, and reads only what they wrote meanwhile."""

    def __init__(self, folder: Path) -> None:
        if not folder.exists():
            raise DataError(f"{folder} does not exist")
        if not folder.is_dir():
            raise ConfigurationError(f"{folder} is a file; watch wants the folder of a run or more")
        self.folder = folder
        self._runs: dict[str, LiveRun] = {}
        self._focus = ""

    def look(self, focus: str | None = None) -> Frame:
        """The runs as they are now; `focus` names one, else it is the first that runs."""
        self._find()
        runs = {name: run.state() for name, run in self._runs.items()}
        ordered = sorted(runs.values(), key=lambda run: not run.running)
        chosen = self._choose(runs, focus, ordered)
        details = None
        if chosen is not None:
            try:
                details = self._runs[chosen.name].details()
                # Its rows have been read now, and it may have gone on.
                chosen = runs[chosen.name] = self._runs[chosen.name].state()
            except DataError:  # its state says so
                details = None
        return Frame(
            folder=str(self.folder),
            runs=[runs[run.name] for run in ordered],
            focus=chosen,
            details=details,
            ended=self._ended(ordered),
        )

    def _find(self) -> None:
        try:
            found = sorted(path.parent for path in self.folder.rglob(MANIFEST))
        except FileNotFoundError:  # a folder was removed meanwhile: the next look tells
            return
        known = {run.folder: run for run in self._runs.values()}
        runs = (
            known.get(path) or LiveRun(path, str(path.relative_to(self.folder))) for path in found
        )
        self._runs = {run.name: run for run in runs}

    def _choose(
        self, runs: dict[str, RunState], wanted: str | None, ordered: list[RunState]
    ) -> RunState | None:
        """The one that is wanted; else the one that ran at the last look, while it still does."""
        if wanted in runs:
            return runs[wanted]
        before = runs.get(self._focus)
        if before is None or not before.running:
            self._focus = ordered[0].name if ordered else ""
        return runs.get(self._focus)

    def _ended(self, runs: list[RunState]) -> bool:
        if not runs or any(run.running for run in runs):
            return False
        alone = runs[0].name == "."
        return alone or min(run.silent for run in runs) > SETTLED
