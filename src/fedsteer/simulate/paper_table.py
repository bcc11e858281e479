"""A table or figure of the paper: several experiments side by side, with the published numbers.

Each is a TOML file in `experiments/paper`: `rules`, `variants` and `seeds` for all columns, and one
`[[columns]]` per experiment, made from a shipped one by `set`, with the paper's numbers. A column
may have `rules` of its own, and `reading = "authors"` to start from the authors' code.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from fedsteer.errors import ConfigurationError, unknown
from fedsteer.simulate.cells import Cell, find_rule, plan_cells
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.experiment_files import load_experiment, shipped_experiments

READINGS = ("paper", "authors")
SMOKE: dict[str, Any] = {
    "partition.clients": 12,
    "partition.points": 12,
    "participation.weak": 0.3,
    "participation.powerful": 0.6,
    "training.epochs": 1,
    "run.rounds": 4,
    "run.evaluate_every": 2,
    "run.watch": [1, 5],
    "options.fedsteer.core_size": 3,
    "options.fedsteer.cycles": 1,
    "options.cluster_fedvarp.cluster_count": 3,
    "options.cluster_fedvarp.cycles": 1,
}
SMOKE_SHARE = 0.12  # clients instead of a hundred
SCALED = ("core_size", "candidates")
SMOKE_MODELS: dict[str, dict[str, Any]] = {
    "emnist-cnn": {"channels": [2, 2, 2], "hidden": [8]},
    "fashion-cnn": {"channels": [2, 2], "hidden": [8]},
    "preact-resnet18": {"width": 2},
}


@dataclass(frozen=True)
class Column:
    """One experiment of a table."""

    experiment: Experiment
    published: dict[str, float]  # label -> accuracy in the paper


@dataclass(frozen=True)
class PaperTable:
    """What `fedsteer reproduce NAME` runs."""

    name: str
    title: str
    about: str  # what the paper says, from the head of the file
    figure: str  # which picture the paper draws of it, see `fedsteer.report.figures`
    columns: list[Column]

    def cells(self, out: Path) -> list[Cell]:
        """Every run of every column."""
        experiments = [column.experiment for column in self.columns]
        planned = [plan_cells(one, one.rules, out / one.name) for one in experiments]
        return [cell for cells in planned for cell in cells]

    def _labels(self) -> list[str]:
        experiments = [column.experiment for column in self.columns]
        return sorted({find_rule(one, name).label for one in experiments for name in one.rules})

    def record(self, command: str = "") -> dict[str, Any]:
        """What the records keep, so that the table can be made from records alone."""
        return {
            "name": self.name,
            "title": self.title,
            "about": self.about,
            "figure": self.figure,
            "commands": [command] if command else [],
            "labels": self._labels(),
            "seeds": max(column.experiment.seeds for column in self.columns),
            "paper": {column.experiment.name: dict(column.published) for column in self.columns},
        }


def shipped_paper_tables() -> dict[str, str]:
    """Name -> TOML text of every table and figure."""
    return shipped_experiments("paper")


def load_paper_table(
    name: str,
    *,
    reading: str = "paper",
    settings: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    only: str | None = None,
    smoke: bool = False,
) -> PaperTable:
    """A table by name, with `settings` on top of every column.

    `only` keeps the column of that name, or those whose names start with it.
    """
    tables = shipped_paper_tables()
    if name not in tables:
        raise unknown("table or figure", name, tables)
    if reading not in READINGS:
        raise unknown("reading", reading, READINGS)
    table = tomllib.loads(tables[name])
    wanted = [c for c in table["columns"] if c["name"] == only] or [
        c for c in table["columns"] if only is None or c["name"].startswith(only)
    ]
    if not wanted:
        raise unknown("column", str(only), [column["name"] for column in table["columns"]])
    if reading != "paper" and any("reading" in column for column in table["columns"]):
        raise ConfigurationError(f"{name} compares readings itself; leave out --reading")
    columns = []
    for column in wanted:
        experiment = load_experiment(column["experiment"], column["set"])
        experiment = replace(
            experiment,
            name=column["name"],
            title=f"{table['title']}: {column['name']}",
            rules=column.get("rules", table["rules"]),
            variants=table.get("variants", {}),
            seeds=seeds or table["seeds"],
        )
        if "authors" in (reading, column.get("reading")):
            experiment = _authors(experiment, column["experiment"], column["set"])
        if reading != "paper":
            experiment = replace(
                experiment,
                name=f"{experiment.name}-{reading}",
                title=f"{experiment.title}, {reading}",
            )
        if smoke:
            experiment = _smoke(experiment)
        published = {} if smoke else column.get("paper", {})
        columns.append(Column(experiment=experiment.changed(settings or {}), published=published))
    title, about = table["title"], _about(tables[name])
    if smoke:
        title, about = f"{title} (smoke test)", "A few clients and rounds on made-up images."
    return PaperTable(name=name, title=title, about=about, figure=table["figure"], columns=columns)


def _about(text: str) -> str:
    """The comment at the head of the file as paragraphs."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return "\n\n".join(" ".join(part.split("\n")) for part in "\n".join(lines).split("\n\n"))


def _authors(experiment: Experiment, base: str, own: Mapping[str, Any]) -> Experiment:
    """As in the authors' code, with the column's own settings (500 clients, 60 points) on top."""
    table = tomllib.loads(shipped_experiments("readings")["authors"])
    theirs = table["all"]["set"] | table.get(base, {}).get("set", {})
    return experiment.changed(theirs | dict(own))


def _smoke(experiment: Experiment) -> Experiment:
    """A few clients with small networks on made-up images, to see whether everything runs."""
    model = experiment.model
    if model.name not in SMOKE_MODELS:
        raise ConfigurationError(f"--smoke does not know the model {model.name}")
    made = {"classes": 8, "side": 16, "points": 400}
    if model.name == "preact-resnet18":
        made["channels"] = 3
    variants = {
        name: {k: ceil(v * SMOKE_SHARE) if k in SCALED else v for k, v in entry.items()}
        for name, entry in experiment.variants.items()
    }
    fedsteer = {
        k: v for k, v in experiment.options.get("fedsteer", {}).items() if k != "search_columns"
    }
    small = replace(
        experiment,
        variants=variants,
        seeds=min(experiment.seeds, 2),
        options=experiment.options | {"fedsteer": fedsteer},
    )
    settings = {"data.name": "made", "data.options": made} | SMOKE
    return small.changed(settings | {"model.options": SMOKE_MODELS[model.name]})
