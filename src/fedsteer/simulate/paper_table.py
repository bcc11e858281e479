"""A table or figure of the paper: several experiments side by side, with the published numbers.

Each is a TOML file in `experiments/paper`: `rules`, `variants`, `seeds` and `set` for all columns,
and one `[[columns]]` per experiment, made from a shipped one by `set`, with the paper's numbers. A
column may have `rules` and `seeds` of its own, `also` have more rules, and start from the authors'
code by `reading = "authors"`. With `ceiling = "NAME"` full participation is not run: it would be
that of column NAME again. With `[tuning]`, rules have server rates of their own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from math import ceil
from pathlib import Path
from typing import Any

from fedsteer.errors import ConfigurationError, check_name, unknown
from fedsteer.records.names import FULL
from fedsteer.simulate.cells import Cell, find_rule, plan_cells
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.experiment_files import load_experiment, shipped_experiments
from fedsteer.simulate.tuning import FIRST_SEED, TUNED, Choices, Tuning, at_chosen_rates

READINGS = ("paper", "authors")
SMOKE_SHARE = 0.12  # clients instead of a hundred
SCALED = ("core_size", "candidates")


@dataclass(frozen=True)
class PaperTable:
    """What `fedsteer reproduce NAME` runs."""

    name: str
    title: str
    about: str  # what the paper says, from the head of the file
    figure: str  # which picture the paper draws of it, see `fedsteer.report.figures`
    experiments: list[Experiment]  # one per column
    published: dict[str, dict[str, float]]  # experiment -> label -> accuracy in the paper
    ceilings: dict[str, str]  # experiment -> another one with the same full participation
    tuning: Tuning | None = None

    def cells(self, out: Path, choices: Choices | None = None) -> list[Cell]:
        """Every run of every column, at the rates chosen."""
        cells = [
            cell for one in self.experiments for cell in plan_cells(one, one.rules, out / one.name)
        ]
        return at_chosen_rates(cells, choices or {})

    def tuning_cells(self, out: Path) -> list[Cell]:
        """The runs that come before, to choose rates and models by."""
        return self.tuning.cells(self.experiments, out) if self.tuning is not None else []

    def absent_files(self) -> dict[str, str]:
        """Of every column that needs a file which is not there, the file."""
        return {
            one.name: path
            for one in self.experiments
            for path in one.participation.files().values()
            if not Path(path).exists()
        }

    def without(self, columns: Collection[str]) -> PaperTable:
        kept = [one for one in self.experiments if one.name not in columns]
        published = {one.name: self.published[one.name] for one in kept}
        return replace(self, experiments=kept, published=published)

    def record(self, command: str = "", choices: Choices | None = None) -> dict[str, Any]:
        """What the records keep, so that the table can be made from records alone."""
        labels = {find_rule(one, name).label for one in self.experiments for name in one.rules}
        return {
            "name": self.name,
            "title": self.title,
            "about": self.about,
            "figure": self.figure,
            "commands": [command] if command else [],
            "labels": sorted(labels),
            "seeds": max(one.seeds for one in self.experiments),
            "paper": self.published,
            "ceilings": self.ceilings,
            "tuning": choices or {},
        }


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

    only   names of columns, or how they start, with commas between; default: all
    """
    tables = shipped_experiments("paper")
    check_name("table or figure", name, tables)
    check_name("reading", reading, READINGS)
    table = tomllib.loads(tables[name])
    wanted = _wanted(table["columns"], only)
    tuning = Tuning(**table["tuning"]) if "tuning" in table else None
    if reading != "paper" and (tuning or any("reading" in column for column in table["columns"])):
        raise ConfigurationError(f"{name} has no other reading; leave out --reading")
    if tuning is not None and smoke:
        tuning = Tuning(rates=tuning.rates[:2], seeds=1)
    if tuning is not None and (seeds or 0) > FIRST_SEED:
        raise ConfigurationError(
            f"--seeds must be at most {FIRST_SEED}: rates are chosen by others"
        )
    if TUNED in (settings or {}):
        tuning = None
    experiments, published, ceilings = [], {}, {}
    for column in wanted:
        base, own = column["experiment"], table.get("set", {}) | column.get("set", {})
        rules = column.get("rules", table["rules"]) + column.get("also", [])
        if "ceiling" in column:
            rules = [rule for rule in rules if rule.partition(":")[0] != FULL]
            ceilings[column["name"]] = column["ceiling"]
        suffix = "" if reading == "paper" else reading
        experiment = replace(
            load_experiment(base, own),
            name="-".join(filter(None, (column["name"], suffix))),
            title=", ".join(filter(None, (f"{table['title']}: {column['name']}", suffix))),
            rules=rules,
            variants=table.get("variants", {}),
            tuned=[TUNED] if tuning else [],
            seeds=column.get("seeds", table["seeds"]) if seeds is None else seeds,
        )
        if "authors" in (reading, column.get("reading")):
            # The column's own settings (500 clients, 60 points) stay on top.
            experiment = experiment.changed(_reading("authors", base) | own)
        if smoke:
            smaller = _reading("smoke", base)
            fitting = {k: v for k, v in smaller.items() if not experiment.without_effect([k])}
            experiment = _with(_smaller(experiment), fitting)
        experiments.append(_with(experiment, settings or {}))
        published[experiment.name] = {} if smoke else column.get("paper", {})
    title, about = table["title"], _about(tables[name])
    if smoke:
        title, about = f"{title} (smoke test)", "A few clients and rounds on made-up images."
    return PaperTable(
        name=name,
        title=title,
        about=about,
        figure=table["figure"],
        experiments=experiments,
        published=published,
        ceilings=ceilings,
        tuning=tuning,
    )


def _wanted(columns: list[dict[str, Any]], only: str | None) -> list[dict[str, Any]]:
    """Of each name between the commas the column of that name, or those that start with it."""
    if only is None:
        return columns
    names, kept = [column["name"] for column in columns], set[str]()
    for word in map(str.strip, only.split(",")):
        found = {word} & {*names} or {name for name in names if word and name.startswith(word)}
        if not found:
            raise unknown("column", word, names)
        kept |= found
    return [column for column in columns if column["name"] in kept]


def _about(text: str) -> str:
    """The comment at the head of the file as paragraphs."""
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    paragraphs = "\n".join(line.removeprefix("#").strip() for line in head).split("\n\n")
    return "\n\n".join(part.replace("\n", " ") for part in paragraphs)


def _with(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """With the settings, and a change of the partition after the same share of the rounds."""
    after, rounds = getattr(experiment.partition, "swap_after", None), settings.get("run.rounds")
    if after is not None and isinstance(rounds, int):
        moved = max(1, after * rounds // experiment.run.rounds)
        settings = {"partition.swap_after": moved, **settings}
    return experiment.changed(settings)


def _reading(name: str, base: str) -> dict[str, Any]:
    """The settings of a file in `experiments/readings` for a shipped experiment."""
    table = tomllib.loads(shipped_experiments("readings")[name])
    return table["all"]["set"] | table.get(base, {}).get("set", {})


def _smaller(experiment: Experiment) -> Experiment:
    """With at most two seeds, and sizes that fit a few clients with small networks."""
    variants = {
        name: {k: ceil(v * SMOKE_SHARE) if k in SCALED else v for k, v in entry.items()}
        for name, entry in experiment.variants.items()
    }
    fedsteer = dict(experiment.options.get("fedsteer", {}))
    fedsteer.pop("search_columns", None)
    return replace(
        experiment,
        variants=variants,
        seeds=min(experiment.seeds, 2),
        options=experiment.options | {"fedsteer": fedsteer},
    )
