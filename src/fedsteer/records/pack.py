"""Turning folders of runs into one archive (see `archive` for what it keeps)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsteer.errors import DataError, unknown
from fedsteer.records.archive import BULKY, SHEET, WHOLE, compact_json, compact_rows, write_archive
from fedsteer.records.files import parse_json
from fedsteer.records.reader import Run, find_runs, read_sheet, runs_of_sheet, without_copies

CLIENTS = ("first", "none", "all")
"""Whose client rows and coordinates are kept: the first seed of each rule, none, or all."""


def pack_records(
    folders: Sequence[Path],
    out: Path,
    *,
    clients: str = "first",
    sheet: Mapping[str, Any] | None = None,
) -> int:
    """Pack every run below these folders (or archives) into `out`; the number of runs.

    sheet   which table of the paper this is; by default what the folders say of themselves
    """
    if clients not in CLIENTS:
        raise unknown("choice of clients", clients, CLIENTS)
    known = sheet if sheet is not None else read_sheet(*folders)
    named = _named(folders, known)
    detailed = set(named) if clients == "all" else set() if clients == "none" else _firsts(named)
    members: dict[str, bytes] = {}
    for name, run in named.items():
        for file, content in _files(run, name in detailed):
            members[f"{name}/{file}"] = content
    if known is not None:
        members[SHEET] = compact_json(known)
    write_archive(out, members)
    return len(named)


def _named(folders: Sequence[Path], sheet: Mapping[str, Any] | None) -> dict[str, Run]:
    """Runs by their path below the folder they were found in."""
    found: dict[str, Run] = {}
    distinct = {run.folder for run in without_copies(find_runs(*folders))}
    for folder in folders:
        for run in runs_of_sheet(find_runs(folder), sheet):
            if run.folder not in distinct:
                continue
            below = run.folder.relative_to(folder)
            parts = below.parts or (folder.resolve().name,)
            if len(folders) > 1:
                parts = (folder.resolve().name.removesuffix(".tar.xz"), *parts)
            name = "/".join(parts)
            if name in found:
                raise DataError(f"{found[name].folder} and {run.folder} would get the same name")
            found[name] = run
    return found


def _firsts(named: Mapping[str, Run]) -> set[str]:
    """Of each rule in each experiment, the run with the lowest seed."""
    first: dict[tuple[str, str], tuple[bool, int, str]] = {}
    for name, run in named.items():
        experiment, rule = (run.manifest.get(key) or {} for key in ("experiment", "rule"))
        entry = (str(experiment.get("name")), str(rule.get("label", rule.get("name"))))
        candidate = (not run.finished, int(run.manifest.get("seed") or 0), name)
        first[entry] = min(first.get(entry, candidate), candidate)
    return {name for _, _, name in first.values()}


def _files(run: Run, detailed: bool) -> Iterable[tuple[str, bytes]]:
    for file in (*WHOLE, "rounds.jsonl", *(BULKY if detailed else ())):
        content = run.read(file)
        if content is None:
            continue
        if file in WHOLE:
            content = compact_json(parse_json(content, run.folder / file))
        elif file.endswith(".jsonl"):
            name = file.removesuffix(".jsonl")
            content = compact_rows(name, run.rows(name))
        yield file, content
