"""Reads runs, and which table they are, from folders or from an archive.

The report knows a run only through this.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedsteer.errors import DataError
from fedsteer.reading import reading
from fedsteer.records import names
from fedsteer.records.archive import ARCHIVE, read_archive
from fedsteer.records.files import json_object, look, naming, number


@dataclass(frozen=True)
class Run:
    """One run's folder, read on demand. `packed` holds the files of a run in an archive."""

    folder: Path
    packed: Mapping[str, bytes] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        manifest, path = self.json(names.MANIFEST), self.folder / names.MANIFEST
        if manifest is None:
            raise DataError(f"{path} is missing")
        if not manifest:
            raise DataError(f"{path} does not say what was run")
        if (found := manifest.get("format", names.FORMAT)) != names.FORMAT:
            raise DataError(f"{path} has format {found!r}, this release reads {names.FORMAT}")
        return manifest

    @property
    def experiment(self) -> str:
        return str(look(self.manifest, "experiment", "name") or "")

    @property
    def label(self) -> str:
        """The rule with preset and options."""
        rule = look(self.manifest, "rule")
        return str(look(rule, "label") or look(rule, "name") or "unnamed rule")

    @property
    def preset_options(self) -> dict[str, Any] | None:
        """The options that the rule's preset stood for when a run to resume began, if known."""
        if not self.resumable:
            return None
        found = look(self.manifest, "rule", "preset_options")
        return found if isinstance(found, dict) else None

    @property
    def resumable(self) -> bool:
        """Whether there is a checkpoint, of whatever kind."""
        return any((self.folder / name).exists() for name in (names.CHECKPOINT, names.BEFORE))

    @cached_property
    def damage(self) -> str | None:
        """Why a report cannot show it, in words; None if it can."""
        try:
            _ = self.manifest, self.result, self.rounds
        except DataError as error:
            return str(error)
        return None

    @property
    def seed(self) -> int | None:
        seed = number(self.manifest, "seed")
        return None if seed is None else int(seed)

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """One row per round. A finished run that lacks rows is an error."""
        result = self.json(names.RESULT) or {}  # first: the run may end meanwhile
        rows = self.rows("rounds")
        trained, before = number(result, "rounds"), number(result, "warm_up_rounds")
        whole = (trained or 0) + (before or 0)
        if _complete(result) and trained and len(rows) < whole:
            path = self.folder / names.stream_file("rounds")
            raise DataError(f"{path} is damaged: {len(rows)} rows of a run of {whole:g} rounds")
        return rows

    @property
    def finished(self) -> bool:
        return _complete(self.json(names.RESULT))  # not cached: the run may end meanwhile

    @property
    def failure(self) -> str | None:
        found = self.json(names.FAILURE)
        return None if found is None else str(found.get("reason"))

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """The summary written at the end; None until then."""
        return self.json(names.RESULT)

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Coordinates of watched clients over the rounds, if the rule has any."""
        content = self.read(names.ARRAYS)
        if content is None:
            return {}
        from safetensors.numpy import load

        with reading(self.folder / names.ARRAYS, "a file of arrays"):
            arrays: dict[str, NDArray[Any]] = load(content)
        return arrays

    def late(self, column: str = "accuracy") -> float | None:
        """The mean of a column over the evaluations of the last third of the training rounds."""
        found = [
            (moment, value)
            for row in self.rounds
            if (moment := number(row, "training_round"))
            and (value := number(row, column)) is not None
        ]
        last = max((moment for moment, _ in found), default=0.0)
        late = [value for moment, value in found if 3 * moment > 2 * last]
        return sum(late) / len(late) if len(found) >= 3 else None

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a `.jsonl` file; not cached, because they may be many."""
        file = names.stream_file(name)
        # After the last newline comes a row that is still being written, or never was finished.
        *lines, _ = (self.read(file) or b"").split(b"\n")
        rows = []
        for place, line in enumerate(lines, start=1):
            with reading(f"{self.folder / file}, line {place},", "a JSON row"):
                rows.append(json_object(line))
        return rows

    def read(self, name: str) -> bytes | None:
        if self.packed is not None:
            return self.packed.get(name)
        try:
            with naming(self.folder / name):
                return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def json(self, name: str) -> dict[str, Any] | None:
        """The object in one of its files, if it exists."""
        content = self.read(name)
        if content is None:
            return None
        with reading(self.folder / name, "a JSON object"):
            return json_object(content)


def _complete(result: Mapping[str, Any] | None) -> bool:
    return bool(result and result.get("finished", True) is True)


def find_runs(*places: Path) -> list[Run]:
    """Every run at or below these folders or in these archives, in the order of their paths.

    A folder without any run folder is searched for archives (`records.tar.xz`) instead.
    """
    found = list[Run]()
    for place in places:
        if not place.exists():
            raise DataError(f"{place} does not exist")
        runs = [Run(path.parent) for path in sorted(place.rglob(names.MANIFEST))]
        if not runs:
            archives = [place] if place.is_file() else sorted(place.rglob(ARCHIVE))
            runs = [run for archive in archives for run in _packed_runs(archive)]
        if not runs:
            raise DataError(f"{place} holds no runs (no {names.MANIFEST} below it)")
        found += runs
    return found


def without_copies(runs: Iterable[Run]) -> list[Run]:
    """Drop copies: two finished runs with the same manifest and result are one run."""
    distinct: dict[Any, Run] = {}
    for run in runs:
        content = json.dumps([run.manifest, run.result], sort_keys=True) if run.finished else None
        distinct.setdefault(content or run.folder, run)
    return list(distinct.values())


def _packed_runs(archive: Path) -> list[Run]:
    by_folder: dict[str, dict[str, bytes]] = {}
    for name, content in read_archive(archive).items():
        folder, _, file = name.rpartition("/")
        by_folder.setdefault(folder, {})[file] = content
    runs = (Run(archive / folder, files) for folder, files in sorted(by_folder.items()))
    return [run for run in runs if run.read(names.MANIFEST) is not None]


def read_sheet(*places: Path) -> dict[str, Any] | None:
    """The sheet of these folders or archives; sheets of one table are joined."""
    whole: dict[str, Any] | None = None
    for place in places:
        if (place / ARCHIVE).exists() and not (place / names.SHEET).exists():
            place /= ARCHIVE
        sheet = Run(place, read_archive(place) if place.is_file() else None).json(names.SHEET)
        if sheet is None:
            continue
        if whole is not None and whole.get("name") != sheet.get("name"):
            raise DataError(
                f"{place} belongs to {sheet.get('name')!r}, the records before it to "
                f"{whole.get('name')!r}: one table at a time"
            )
        whole = join_sheets(whole, sheet)
    return whole


def join_sheets(before: dict[str, Any] | None, sheet: dict[str, Any]) -> dict[str, Any]:
    """Join two sheets that have other columns, or other rules, of the same table."""
    if before is None:
        return sheet
    commands = dict.fromkeys([*before.get("commands", []), *sheet.get("commands", [])])
    old, new = before.get("tuning", {}), sheet.get("tuning", {})
    joined = sheet | {
        "commands": list(commands),
        "paper": before.get("paper", {}) | sheet.get("paper", {}),
        "ceilings": before.get("ceilings", {}) | sheet.get("ceilings", {}),
        # Commands may have other rules in the same column.
        "tuning": {key: old.get(key, {}) | new.get(key, {}) for key in {**old, **new}},
    }
    if "labels" in before and "labels" in sheet:
        joined["labels"] = sorted({*before["labels"], *sheet["labels"]})
        joined["seeds"] = max(before["seeds"], sheet["seeds"])
    return joined


def runs_of_sheet(runs: Iterable[Run], sheet: Mapping[str, Any] | None) -> list[Run]:
    """The runs that belong to the sheet. Tables may share a folder, and even runs."""
    if sheet is None or "labels" not in sheet:
        return list(runs)

    def belongs(run: Run) -> bool:
        named = run.experiment in sheet["paper"] and run.label in sheet["labels"]
        return named and (run.seed or 0) < sheet["seeds"]

    return [run for run in runs if belongs(run)]
