"""Loading runs. The report knows a run only through this."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedsteer.errors import DataError
from fedsteer.records.files import read_json

FAILURE = "failure.json"
"""Beside the records of a run that could not go on: the reason."""


@dataclass(frozen=True)
class Run:
    """One run's folder, read when asked."""

    folder: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What was run."""
        manifest: dict[str, Any] = read_json(self.folder / "manifest.json")
        return manifest

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """One row a round."""
        return self._rows("rounds")

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """One row per client touched in a round."""
        return self._rows("clients")

    @cached_property
    def timing(self) -> list[dict[str, Any]]:
        """Seconds per round."""
        return self._rows("timing")

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.folder / "result.json").exists()

    @property
    def failure(self) -> str | None:
        """Why the run could not go on, if it could not."""
        path = self.folder / FAILURE
        return str(read_json(path)["reason"]) if path.exists() else None

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """The summary written at the end; None while the run is not complete."""
        result: dict[str, Any] | None = None
        if self.finished:
            result = read_json(self.folder / "result.json")
        return result

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Coordinates of watched clients over the rounds, where the rule has any."""
        path = self.folder / "arrays.safetensors"
        if not path.exists():
            return {}
        from safetensors.numpy import load_file

        arrays: dict[str, NDArray[Any]] = load_file(path)
        return arrays

    def _rows(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.jsonl"
        if not path.exists():
            return []
        rows = []
        # What follows the last end of line is a row that a run is still writing, or died writing.
        *lines, _ = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {number}: not a JSON row")
            rows.append(row)
        return rows


def find_runs(*folders: Path) -> list[Run]:
    """Every run at or below these folders, in the order of their paths."""
    found = []
    for folder in folders:
        if not folder.exists():
            raise DataError(f"{folder} does not exist")
        manifests = sorted(folder.rglob("manifest.json"))
        if not manifests:
            raise DataError(f"{folder} holds no runs (no manifest.json below it)")
        found += [Run(path.parent) for path in manifests]
    return found
