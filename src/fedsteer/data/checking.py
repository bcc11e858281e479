"""Is a data set here, and is it what it says it is?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedsteer.data.catalogue import entry_of
from fedsteer.data.entry import Entry
from fedsteer.data.files import find, missing
from fedsteer.data.loading import load_from
from fedsteer.errors import ConfigurationError, DataError


@dataclass(frozen=True)
class CheckReport:
    """What `check` found. `files` maps each file to its size on disk in bytes."""

    name: str
    state: Literal["ok", "missing", "damaged"]
    problem: str = ""  # one line, empty when the state is ok
    folder: Path | None = None
    files: tuple[tuple[str, int], ...] = ()
    checksums: tuple[tuple[str, str], ...] = ()  # file -> SHA-256 of its unpacked content
    train_per_class: tuple[int, ...] = ()
    test_per_class: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the data set can be used."""
        return self.state == "ok"


def check(name: str, *, folder: str | os.PathLike[str] | None = None) -> CheckReport:
    """Look for a data set, read all of it and compare it with the published checksums.

    What is wrong with it is reported, not raised; only an unknown name is an error.
    """
    entry = entry_of(name)
    if not entry.files:
        return _looked_at(entry, [])
    worse: CheckReport | None = None
    for paths in find(entry, folder):
        report = _looked_at(entry, paths)
        if report.ok:
            return report
        worse = worse or report
    return worse or CheckReport(name, "missing", str(missing(entry, folder)))


def _looked_at(entry: Entry, paths: list[Path]) -> CheckReport:
    where = paths[0].parent if paths else None
    files = tuple((path.name, path.stat().st_size) for path in paths)
    try:
        dataset = load_from(paths, entry)
    except ConfigurationError as error:  # the package that carries it is not installed
        return CheckReport(entry.name, "missing", str(error))
    except DataError as error:
        return CheckReport(entry.name, "damaged", str(error), where, files)
    return CheckReport(
        entry.name,
        "ok",
        folder=where,
        files=files,
        checksums=tuple(dataset.checksums.items()),
        train_per_class=_per_class(dataset.train_labels, dataset.classes),
        test_per_class=_per_class(dataset.test_labels, dataset.classes),
    )


def _per_class(labels: np.ndarray[tuple[int], np.dtype[np.int64]], classes: int) -> tuple[int, ...]:
    return tuple(int(count) for count in np.bincount(labels, minlength=classes))
