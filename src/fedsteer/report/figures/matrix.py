"""Every rule in every setting: a number in each cell, its distance to full participation as colour.

The number is the accuracy over the last third of the rounds, the mean over seeds; of a practical
form that of the averaged model. A run that failed counts as guessing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.records import Run
from fedsteer.records.files import look, number
from fedsteer.report.entries import FULL, Entry, gather, in_order
from fedsteer.report.figures.plotting import INK, MUTED, Figure
from fedsteer.report.statistics import estimate
from fedsteer.report.styles import LIGHT
from fedsteer.report.tables import MISSING, count, percent, size, table

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

LOST = 2
"""A seed below so many times the accuracy of guessing is at chance."""
BELOW, ABOVE = -20.0, 5.0  # points to full participation with the deepest colours
ROW, GAP, MARGIN = 0.25, 0.35, 1.5  # inches of a row, rows between the forms, inches around
NOTE = (
    "Accuracy in % over the last third of the rounds, of a practical form that of the averaged "
    "model: means over seeds ± standard error. Bold: the best rule with partial participation, and "
    "those within one standard error of it, paired by seed. †2: two seeds at chance, below twice "
    "the accuracy of guessing; a run that failed counts as guessing. Rules stand in the order of "
    "their mean rank."
)


@dataclass(frozen=True)
class Cell:
    """One rule in one setting."""

    entry: Entry
    guessing: float  # the accuracy of it
    seeds: dict[int | None, float]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(np.mean(list(self.seeds.values())))

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return _error(list(self.seeds.values()))

    @property
    def lost(self) -> int:
        """Seeds at chance."""
        return sum(value < LOST * self.guessing for value in self.seeds.values())


@dataclass(frozen=True)
class Matrix:
    """All cells, and the order of settings and of rules."""

    settings: list[str]
    labels: list[str]  # practical forms first
    practical: int  # how many these are
    cells: dict[tuple[str, str], Cell]
    ranks: dict[str, float]  # mean over settings, within the form; full participation has none

    @cached_property
    def best(self) -> set[tuple[str, str]]:
        """The best cell of every setting with partial participation, and its equals."""
        found = set()
        for setting in self.settings:
            own = {p: c for p, c in self.cells.items() if p[0] == setting and not _full(p[1])}
            top = max(own.values(), key=lambda cell: cell.mean, default=None)
            for place, cell in own.items():
                assert top is not None
                apart = [top.seeds[s] - cell.seeds[s] for s in top.seeds if s in cell.seeds]
                if apart and np.mean(apart) <= _error(apart):
                    found.add(place)
        return found

    def distance(self, setting: str, label: str) -> float | None:
        """Points to practical full participation in the same setting."""
        full = self.cells.get((setting, f"{FULL} (practical)"))
        return None if full is None else 100 * (self.cells[setting, label].mean - full.mean)


def matrix_figure(runs: Iterable[Run], order: Sequence[str]) -> Figure | None:
    """Settings across, rules down."""
    matrix = _matrix(gather(runs), order)
    if not matrix.cells:
        return None
    height = MARGIN + ROW * (len(matrix.labels) + GAP)
    return Figure(
        table=_tables(matrix), height=height, draw=lambda at: _draw(matrix, at), whole=True
    )


def _matrix(entries: Sequence[Entry], order: Sequence[str]) -> Matrix:
    cells = {}
    for entry in entries:
        guessing = 1 / (number(entry.runs[0].manifest, "data", "classes") or np.inf)
        found = {run.seed: _late(run, guessing) for run in entry.runs}
        known = {seed: value for seed, value in found.items() if value is not None}
        if known:
            cells[entry.experiment, entry.label] = Cell(entry=entry, guessing=guessing, seeds=known)
    settings = in_order(sorted({setting for setting, _ in cells}), order)
    forms: dict[bool, list[str]] = {True: [], False: []}
    for (_, label), cell in cells.items():
        form = forms[_practical(cell.entry.runs[0])]
        form += [label] if label not in form else []
    ranks: dict[str, list[float]] = {}
    for labels in forms.values():
        for setting in settings:
            here = [one for one in labels if (setting, one) in cells and not _full(one)]
            means = np.array([cells[setting, one].mean for one in here])
            for label, own in zip(here, means, strict=True):
                ties = (means == own).sum() - 1
                ranks.setdefault(label, []).append(1 + (means > own).sum() + ties / 2)
    mean_ranks = {label: float(np.mean(own)) for label, own in ranks.items()}
    ordered = [
        label
        for labels in forms.values()
        for label in sorted(labels, key=lambda label: (mean_ranks.get(label, 0.0), label))
    ]
    return Matrix(
        settings=settings,
        labels=ordered,
        practical=len(forms[True]),
        cells=cells,
        ranks=mean_ranks,
    )


def _late(run: Run, guessing: float) -> float | None:
    if not run.finished:
        return None if run.failure is None else guessing
    averaged = run.late("average_accuracy") if _practical(run) else None
    return run.late() if averaged is None else averaged


def _practical(run: Run) -> bool:
    return bool(look(run.manifest, "rule", "preset") == "practical")


def _full(label: str) -> bool:
    return label.startswith(FULL)


def _error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _tables(matrix: Matrix) -> str:
    """The matrix, the worst seeds, the rates chosen, and what each rule costs."""

    def grid(title: str, text: Callable[[tuple[str, str], Cell], str]) -> str:
        rows = [
            [
                label,
                *(
                    text((s, label), matrix.cells[s, label]) if (s, label) in matrix.cells
                    else MISSING
                    for s in matrix.settings
                ),
            ]
            for label in matrix.labels
        ]  # fmt: skip
        return f"{title}\n\n{table(['rule', *matrix.settings], rows, ['rule'])}"

    def value(place: tuple[str, str], cell: Cell) -> str:
        mean = f"**{percent(cell.mean)}**" if place in matrix.best else percent(cell.mean)
        return f"{mean} ± {percent(cell.error)}" + (f" †{cell.lost}" if cell.lost else "")

    def rate(_: tuple[str, str], cell: Cell) -> str:
        experiments = [look(run.manifest, "experiment") for run in cell.entry.runs]
        if any("server.rate" not in (look(one, "tuned") or ()) for one in experiments):
            return MISSING
        rates = {number(one, "server", "rate") for one in experiments}
        return " or ".join(sorted(f"{known:g}" for known in rates if known is not None))

    chosen = "Server rates, chosen on training images that no client holds, under other seeds:"
    parts = [
        grid("", value).lstrip(),
        NOTE,
        grid("The worst seed in %:", lambda _, cell: percent(min(cell.seeds.values()))),
        grid(chosen, rate),
        _costs(matrix),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _costs(matrix: Matrix) -> str:
    rows = []
    for label in matrix.labels:
        own = [matrix.cells[s, label] for s in matrix.settings if (s, label) in matrix.cells]
        worst = min(own, key=lambda cell: min(cell.seeds.values()))
        costs = []
        for key, form in (("server_bytes", size), ("bytes_up", size), ("warm_up_rounds", count)):
            found = estimate(number(run.result, key) for run in own[0].entry.counted)
            costs.append(MISSING if found is None else form(found.mean))
        rank = matrix.ranks.get(label)
        rows.append(
            [
                label,
                MISSING if rank is None else f"{rank:.1f}",
                f"{percent(min(worst.seeds.values()))} ({worst.entry.experiment})",
                f"{sum(cell.lost for cell in own)} of {sum(len(cell.seeds) for cell in own)}",
                *costs,
            ]
        )
    headings = ["rule", "mean rank", "worst seed %", "seeds at chance", "memory", "sent up",
                "warm-up rounds"]  # fmt: skip
    return f"Costs are those in {matrix.settings[0]}:\n\n{table(headings, rows, ['rule'])}"


def _draw(matrix: Matrix, figure: SubFigure) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.patches import Rectangle

    scale = Normalize(BELOW, ABOVE)
    turns = [(0.0, LIGHT[0]), (float(scale(0.0)), "#ffffff"), (1.0, LIGHT[6])]
    shades = LinearSegmentedColormap.from_list("", turns)
    axes = figure.subplots()
    places = [row + GAP * (row >= matrix.practical) for row in range(len(matrix.labels))]
    for y, label in zip(places, matrix.labels, strict=True):
        for x, setting in enumerate(matrix.settings):
            if (cell := matrix.cells.get((setting, label))) is None:
                axes.text(x, y, MISSING, ha="center", va="center", size=8, color=MUTED)
                continue
            apart = matrix.distance(setting, label)
            colour = "white" if apart is None else shades(scale(apart))
            box = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white")
            axes.add_patch(box)
            weight = "bold" if (setting, label) in matrix.best else "normal"
            words = percent(cell.mean)
            axes.text(x, y, words, ha="center", va="center", size=8, weight=weight, color=INK)
            if cell.lost:
                axes.plot(x + 0.37, y - 0.29, marker="v", color=INK, markersize=3)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlim(-0.5, len(matrix.settings) - 0.5)
    axes.set_ylim(places[-1] + 0.5, -0.5)
    axes.set_yticks(places, matrix.labels, color=INK)
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(matrix.settings)), matrix.settings, color=INK, rotation=40, ha="left")
    axes.set_xlabel("accuracy in %; bold: best with partial participation; ▼ a seed at chance")
    bar = figure.colorbar(
        ScalarMappable(scale, shades), ax=axes, extend="both", aspect=30, pad=0.01
    )
    bar.set_label("points to full participation")
