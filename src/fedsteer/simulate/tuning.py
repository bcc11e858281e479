"""Server rates from a grid: every rule gets the one that suits it best, by runs of their own.

In every column every rule runs at every rate, under seeds that are not reported. What counts is the
accuracy on training images that no client holds, over the last third of the evaluations; of a
practical form, that of the averaged model, as in the table. A run that failed counts as zero.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedsteer.records import Run
from fedsteer.rules import RULES
from fedsteer.simulate.cells import Cell, find_rule, plan_cells
from fedsteer.simulate.experiment import Experiment

TUNED = "server.rate"
FIRST_SEED = 1_000
"""Of the runs that are not reported; reported seeds are counted from 0."""
FOLDER = "tuning"

Scores = Mapping[str, Mapping[str, Mapping[str, Sequence[float | None]]]]
"""Experiment -> label of a rule -> server rate -> held-out accuracy under each seed."""


@dataclass(frozen=True)
class Tuning:
    """The section [tuning] of a table."""

    rates: Sequence[float]
    seeds: int

    def cells(self, experiments: Iterable[Experiment], out: Path) -> list[Cell]:
        """The runs to choose by; rules that move the model themselves have no rate."""
        seeds = range(FIRST_SEED, FIRST_SEED + self.seeds)
        return [
            cell
            for one in experiments
            for rate in self.rates
            for cell in plan_cells(
                one.changed({TUNED: rate}),
                [rule for rule in one.rules if not RULES[find_rule(one, rule).name].own_rate],
                out / FOLDER / one.name / f"rate-{rate:g}",
                seeds,
            )
        ]


def scores_of(cells: Iterable[Cell]) -> Scores:
    """What the finished runs of these cells say."""
    scores: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for cell in cells:
        run, rate = Run(cell.folder), f"{cell.experiment.server.rate:g}"
        prefix = "average_" if cell.rule.preset == "practical" else ""
        found = run.late(f"{prefix}held_out_accuracy") if run.finished else None
        own = scores.setdefault(cell.experiment.name, {}).setdefault(cell.rule.label, {})
        own.setdefault(rate, []).append(found)
    return scores


def at_best_rates(cells: Iterable[Cell], scores: Scores) -> list[Cell]:
    """The cells, each at the rate that suits its rule best, if there are scores of it."""
    made: dict[tuple[str, float], Experiment] = {}  # cells at the same rate share an experiment
    found = []
    for cell in cells:
        one = cell.experiment
        own = scores.get(one.name, {}).get(cell.rule.label)
        rate = best_rate(own) if own else 0.0
        tuned = one.changed({TUNED: rate} if own else {"tuned": []})
        found.append(replace(cell, experiment=made.setdefault((one.name, rate), tuned)))
    return found


def best_rate(own: Mapping[str, Sequence[float | None]]) -> float:
    """The rate with the highest mean; of equal ones the first."""
    return float(max(own, key=lambda rate: sum(score or 0.0 for score in own[rate])))
