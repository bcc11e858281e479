"""`sheet.json`: which table or figure of the paper some records are."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedsteer.errors import DataError
from fedsteer.records.archive import ARCHIVE, read_archive
from fedsteer.records.reader import Run

SHEET = "sheet.json"


def read_sheet(*places: Path) -> dict[str, Any] | None:
    """The sheet of these folders or archives; sheets of one table are joined."""
    whole: dict[str, Any] | None = None
    for place in places:
        if (place / ARCHIVE).exists() and not (place / SHEET).exists():
            place /= ARCHIVE
        sheet = Run(place, read_archive(place) if place.is_file() else None).json(SHEET)
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
