"""Packs runs into one small archive for a repository; docs/records.md says what it keeps.

What is left out or rounded changes no table and no accuracy curve: these come from `result.json`
and from keys of `rounds.jsonl` that keep every digit. Other numbers keep four significant ones.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsteer.errors import DataError, check_name
from fedsteer.records.archive import write_archive
from fedsteer.records.files import rounded
from fedsteer.records.names import ARRAYS, FAILURE, MANIFEST, RESULT, SHEET, stream_file
from fedsteer.records.reader import Run, find_runs, read_sheet, runs_of_sheet, without_copies

CLIENTS = ("first", "none", "all")
"""Which runs keep client rows and coordinates: the first seed of each rule, none, or all."""
ROUNDS = ("all", "accuracies")
"""What rows of rounds keep."""
EXACT = {"accuracy", "average_accuracy", "group_accuracy", "held_out_accuracy"}
"""Keys of rows that keep every digit."""
ACCURACIES = EXACT | {"round", "phase", "training_round"}
LEFT_OUT = {"rounds": {"class_accuracy"}, "clients": {"cosine", "loss", "norm", "steps"}}
"""Bulky keys that no table or figure reads."""


def pack_records(
    folders: Sequence[Path],
    out: Path,
    *,
    clients: str = "first",
    rounds: str = "all",
    sheet: Mapping[str, Any] | None = None,
) -> int:
    """Pack every run below these folders (or archives) into `out`; return the number of runs.

    sheet   which table of the paper this is; by default what the folders' own sheets say
    """
    check_name("choice of clients", clients, CLIENTS)
    check_name("choice of rounds", rounds, ROUNDS)
    known = sheet if sheet is not None else read_sheet(*folders)
    named = _named(folders, known)
    detailed = set(named) if clients == "all" else set() if clients == "none" else _firsts(named)
    members = {
        f"{name}/{file}": content
        for name, run in named.items()
        for file, content in _files(run, name in detailed, rounds)
    }
    if known is not None:
        members[SHEET] = _compact_json(known)
    write_archive(out, members)
    return len(named)


def _named(folders: Sequence[Path], sheet: Mapping[str, Any] | None) -> dict[str, Run]:
    """Runs by their path below the folder they were found in."""
    found: dict[str, Run] = {}
    places = {run: folder for folder in folders for run in find_runs(folder)}
    for run in without_copies(runs_of_sheet(places, sheet)):
        place = places[run]
        parts = run.folder.relative_to(place).parts or (place.resolve().name,)
        if len(folders) > 1:
            parts = (place.resolve().name.removesuffix(".tar.xz"), *parts)
        name = "/".join(parts)
        if name in found:
            raise DataError(f"{found[name].folder} and {run.folder} would get the same name")
        found[name] = run
    return found


def _firsts(named: Mapping[str, Run]) -> set[str]:
    """Names of the runs with the lowest seed, one per rule and experiment."""
    order = sorted(named, key=lambda name: (not named[name].finished, named[name].seed or 0, name))
    first = {(named[name].experiment, named[name].label): name for name in reversed(order)}
    return set(first.values())


def _files(run: Run, detailed: bool, rounds: str) -> Iterable[tuple[str, bytes]]:
    for file in (MANIFEST, RESULT, FAILURE):
        if (value := run.json(file)) is not None:
            yield file, _compact_json(value)
    for stream in ("rounds", "clients") if detailed else ("rounds",):
        if run.read(stream_file(stream)) is not None:
            rows = [shortened(row, EXACT, LEFT_OUT[stream]) for row in run.rows(stream)]
            if (stream, rounds) == ("rounds", "accuracies"):
                rows = [{key: row[key] for key in row if key in ACCURACIES} for row in rows]
            yield stream_file(stream), b"".join(_compact_json(row) + b"\n" for row in rows)
    if detailed and (content := run.read(ARRAYS)) is not None:
        yield ARRAYS, content


def _compact_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def shortened(value: Any, exact: Collection[str] = (), left_out: Collection[str] = ()) -> Any:
    """Round all numbers but the `exact` ones."""
    if isinstance(value, dict):
        kept = {key: entry for key, entry in value.items() if key not in left_out}
        return {key: entry if key in exact else shortened(entry) for key, entry in kept.items()}
    if isinstance(value, list):
        return [shortened(entry) for entry in value]
    if isinstance(value, float):
        return rounded(value)
    return value
