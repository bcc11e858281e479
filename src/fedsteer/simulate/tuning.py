"""What suits a rule best: a server rate from a grid, and the last model or the averaged one.

In every column every rule runs at every rate, under seeds that are not reported; a rule without a
server rate runs once per seed. What counts is the accuracy on training images that no client holds,
over the last third of the evaluations. A run that failed counts as zero. Practical forms may choose
the averaged model; the paper's forms know none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsteer.records import Run
from fedsteer.rules import RULES
from fedsteer.simulate.cells import Cell, find_rule, plan_cells
from fedsteer.simulate.experiment import Experiment

TUNED = "server.rate"
FIRST_SEED = 1_000
"""Of the runs that are not reported; reported seeds are counted from 0."""
FOLDER = "tuning"
MODELS = {"last": "held_out_accuracy", "averaged": "average_held_out_accuracy"}
"""Model -> the column of the records that it is chosen by."""

Choices = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Experiment -> label of a rule -> what `_choice` says."""


@dataclass(frozen=True)
class Tuning:
    """The section [tuning] of a table."""

    rates: Sequence[float]
    seeds: int

    def cells(self, experiments: Iterable[Experiment], out: Path) -> list[Cell]:
        """The runs to choose by."""
        seeds = range(FIRST_SEED, FIRST_SEED + self.seeds)
        return [
            cell
            for one in experiments
            for rate in self.rates
            for cell in plan_cells(
                one.changed({TUNED: rate}),
                [rule for rule in one.rules if rate == self.rates[0] or _has_rate(one, rule)],
                out / FOLDER / one.name / f"rate-{rate:g}",
                seeds,
            )
        ]


def _has_rate(experiment: Experiment, rule: str) -> bool:
    """Not if the rule moves the model itself."""
    return not RULES[find_rule(experiment, rule).name].own_rate


def choices_of(cells: Iterable[Cell]) -> Choices:
    """What the runs of these cells speak for."""
    trials: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        trials.setdefault((cell.experiment.name, cell.rule.label), []).append(cell)
    choices: dict[str, dict[str, Any]] = {}
    for (experiment, label), own in trials.items():
        choices.setdefault(experiment, {})[label] = _choice(own)
    return choices


def _choice(trials: Sequence[Cell]) -> dict[str, Any]:
    """The best rate and model of a rule, and the scores of all; of equal ones the first.

    The rate is None if the rule has none.
    """
    rule = trials[0].rule
    scores: dict[tuple[float, str], list[float]] = {}
    for cell in trials:
        run = Run(cell.folder)
        for model in MODELS if rule.preset == "practical" else ("last",):
            found = run.late(MODELS[model]) if run.finished else None
            scores.setdefault((cell.experiment.server.rate, model), []).append(found or 0.0)
    best_rate, best_model = max(scores, key=lambda tried: sum(scores[tried]))
    return {
        "rate": None if RULES[rule.name].own_rate else best_rate,
        "model": best_model,
        "scores": {f"{rate:g} {model}": own for (rate, model), own in scores.items()},
    }


def at_chosen_rates(cells: Iterable[Cell], choices: Choices) -> list[Cell]:
    """The cells, each at the rate that was chosen for its rule, if one was."""
    made: dict[tuple[str, Any], Experiment] = {}  # cells at the same rate share an experiment
    found = []
    for cell in cells:
        one = cell.experiment
        rate = choices.get(one.name, {}).get(cell.rule.label, {}).get("rate")
        tuned = one.changed({"tuned": []} if rate is None else {TUNED: rate})
        found.append(replace(cell, experiment=made.setdefault((one.name, rate), tuned)))
    return found
