"""Loading runs, from folders or from an archive. The report knows a run only through this."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedsteer.errors import DataError
from fedsteer.records.archive import ARCHIVE, SHEET, read_archive
from fedsteer.records.files import parse_json
from fedsteer.records.names import ARRAYS, FAILURE, FORMAT, MANIFEST, RESULT, stream_file


@dataclass(frozen=True)
class Run:
    """One run's folder, read when asked; in an archive, `packed` holds its files."""

    folder: Path
    packed: Mapping[str, bytes] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What was run."""
        manifest: dict[str, Any] | None = self._json(MANIFEST)
        path = self.folder / MANIFEST
        if manifest is None:
            raise DataError(f"{path} is missing")
        if not manifest:
            raise DataError(f"{path} does not say what was run")
        if (found := manifest.get("format", FORMAT)) != FORMAT:
            raise DataError(f"{path} has format {found!r}, this release reads {FORMAT}")
        return manifest

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """One row a round; of a finished run all of them."""
        result = self._json(RESULT) or {}  # before the rows: a run may end while it is looked at
        rows = self.rows("rounds")
        whole = (result.get("rounds") or 0) + (result.get("warm_up_rounds") or 0)
        if _complete(result) and result.get("rounds") and len(rows) < whole:
            path = self.folder / stream_file("rounds")
            raise DataError(f"{path} is damaged: {len(rows)} rows of a run of {whole} rounds")
        return rows

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """One row per client touched in a round."""
        return self.rows("clients")

    @cached_property
    def timing(self) -> list[dict[str, Any]]:
        """Seconds per round."""
        return self.rows("timing")

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return _complete(self._json(RESULT))  # anew: a run may end while it is looked at

    @property
    def failure(self) -> str | None:
        """Why the run could not go on, if it could not."""
        found = self._json(FAILURE)
        return None if found is None else str(found["reason"])

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """The summary written at the end; None while the run is not complete."""
        result: dict[str, Any] | None = self._json(RESULT)
        return result

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Coordinates of watched clients over the rounds, where the rule has any."""
        content = self.read(ARRAYS)
        if content is None:
            return {}
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays: dict[str, NDArray[Any]] = load(content)
        except SafetensorError as error:
            raise DataError(f"{self.folder / ARRAYS} is damaged: {error}") from None
        return arrays

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a `.jsonl` file, read anew: what is long need not stay in memory."""
        file = stream_file(name)
        content = self.read(file)
        if content is None:
            return []
        rows = []
        # What follows the last end of line is a row that a run is still writing, or died writing.
        *lines, _ = content.split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise DataError(f"{self.folder / file}, line {number}: not a JSON row")
            rows.append(row)
        return rows

    def read(self, name: str) -> bytes | None:
        """The content of one of its files, if it is there."""
        if self.packed is not None:
            return self.packed.get(name)
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def _json(self, name: str) -> Any:
        content = self.read(name)
        found = None if content is None else parse_json(content, self.folder / name)
        if not isinstance(found, dict | None):
            raise DataError(f"{self.folder / name} holds no table")
        return found


def _complete(result: Mapping[str, Any] | None) -> bool:
    return bool(result and result.get("finished", True) is True)


def find_runs(*places: Path) -> list[Run]:
    """Every run at or below these folders or in these archives, in the order of their paths.

    A folder without any run folder is searched for archives (`records.tar.xz`) instead.
    """
    found = []
    for place in places:
        if not place.exists():
            raise DataError(f"{place} does not exist")
        if place.is_file():
            found += _packed_runs(place)
            continue
        runs = [Run(path.parent) for path in sorted(place.rglob(MANIFEST))]
        if not runs:
            archives = sorted(place.rglob(ARCHIVE))
            runs = [run for archive in archives for run in _packed_runs(archive)]
        if not runs:
            raise DataError(f"{place} holds no runs (no {MANIFEST} below it)")
        found += runs
    return found


def without_copies(runs: Iterable[Run]) -> list[Run]:
    """Each run once, wherever else it lies: one that has ended has the same result nowhere else."""
    distinct: dict[Any, Run] = {}
    for run in runs:
        told = json.dumps([run.manifest, run.result], sort_keys=True) if run.finished else None
        distinct.setdefault(told or run.folder, run)
    return list(distinct.values())


def read_sheet(*places: Path) -> dict[str, Any] | None:
    """Which table or figure of the paper these records are, if they say so."""
    whole: dict[str, Any] | None = None
    for place in places:
        if (sheet := _own_sheet(place)) is None:
            continue
        if whole is not None and whole.get("name") != sheet.get("name"):
            raise DataError(
                f"{place} is {sheet.get('name')!r}, and what came before is {whole.get('name')!r}: "
                "one table at a time"
            )
        whole = join_sheets(whole, sheet)
    return whole


def join_sheets(before: dict[str, Any] | None, sheet: dict[str, Any]) -> dict[str, Any]:
    """The sheet with what others said of other columns of the same table."""
    if before is None:
        return sheet
    commands = dict.fromkeys([*before.get("commands", []), *sheet.get("commands", [])])
    paper = before.get("paper", {}) | sheet.get("paper", {})
    joined = sheet | {"commands": list(commands), "paper": paper}
    if "labels" in before and "labels" in sheet:
        joined["labels"] = sorted({*before["labels"], *sheet["labels"]})
        joined["seeds"] = max(before["seeds"], sheet["seeds"])
    return joined


def runs_of_sheet(runs: Iterable[Run], sheet: Mapping[str, Any] | None) -> list[Run]:
    """Those that belong to it, where it says so: tables may share a folder, and runs."""
    if sheet is None or "labels" not in sheet:
        return list(runs)

    def belongs(run: Run) -> bool:
        experiment, rule = (run.manifest.get(key) or {} for key in ("experiment", "rule"))
        named = experiment.get("name") in sheet["paper"] and rule.get("label") in sheet["labels"]
        return named and int(run.manifest.get("seed") or 0) < sheet["seeds"]

    return [run for run in runs if belongs(run)]


def _own_sheet(place: Path) -> dict[str, Any] | None:
    if not place.is_file() and (place / ARCHIVE).exists() and not (place / SHEET).exists():
        place = place / ARCHIVE
    if place.is_file():
        content = read_archive(place).get(SHEET)
    else:
        path = place / SHEET
        content = path.read_bytes() if path.exists() else None
    if content is None:
        return None
    sheet = parse_json(content, place / SHEET)
    if not isinstance(sheet, dict):
        raise DataError(f"{place / SHEET} is damaged: not an object")
    return sheet


def _packed_runs(archive: Path) -> list[Run]:
    by_folder: dict[str, dict[str, bytes]] = {}
    for name, content in read_archive(archive).items():
        folder, _, file = name.rpartition("/")
        by_folder.setdefault(folder, {})[file] = content
    runs = [
        Run(archive / folder, files)
        for folder, files in sorted(by_folder.items())
        if MANIFEST in files
    ]
    if not runs:
        raise DataError(f"{archive} holds no runs (no {MANIFEST} in it)")
    return runs
