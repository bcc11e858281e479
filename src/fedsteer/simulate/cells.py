"""The runs of a comparison: every rule under every seed, each with a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fedsteer.errors import ConfigurationError, RoundRefused, TrainingFailed
from fedsteer.records.names import MANIFEST, SEED
from fedsteer.rules import Rule
from fedsteer.simulate.entries import Entry, find_entry, refuse_endless_warm_up
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.runner import Progress, Watch, run_entry


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    experiment: Experiment
    entry: Entry
    seed: int
    folder: Path


Report = Callable[[Cell, Progress | None], None]
"""Called after a round of a cell, and with None when the cell is finished."""


def plan_cells(experiment: Experiment, rules: Sequence[str], out: Path) -> list[Cell]:
    """All cells, seed by seed, so that an interrupted comparison has whole seeds first."""
    if (out / MANIFEST).exists():
        raise ConfigurationError(f"{out} holds a run, not a comparison; choose another --out")
    entries: dict[str, Entry] = {}  # by folder
    made: list[Rule] = []
    for name in rules:
        entry = find_entry(experiment, name)
        same = entries.setdefault(entry.slug, entry)
        if same != entry:
            raise ConfigurationError(
                f"{same.label!r} and {entry.label!r} would share the folder {entry.slug!r}"
            )
        # A mistake in its options shows now, not after hours.
        made.append(entry.build(experiment, 0, [1.0]))
    if waiting := [rule for rule in made if rule.options.warms_up]:
        clients = experiment.partition.clients
        for seed in range(experiment.seeds):
            odds = experiment.participation.process(clients, seed).probabilities
            for rule in waiting:
                refuse_endless_warm_up(rule, odds)
    return [
        Cell(experiment, entry, seed, out / entry.slug / f"{SEED}{seed}")
        for seed in range(experiment.seeds)
        for entry in entries.values()
    ]


def run_cell(
    cell: Cell, resume: bool, watch: Watch | None, stop: Callable[[], bool] | None = None
) -> None:
    """One run, here and now."""
    what = cell.experiment, cell.entry, cell.seed, cell.folder
    # One run that diverges must not cost the others; the reason is kept in its folder.
    with suppress(RoundRefused, TrainingFailed):
        run_entry(*what, resume=resume, watch=watch, stop=stop)


def with_seeds(experiment: Experiment, seeds: int | None) -> Experiment:
    """The experiment with another number of seeds."""
    return experiment if seeds is None else replace(experiment, seeds=seeds)
