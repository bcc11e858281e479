"""Every rule in every setting: a number in each cell, its distance to full participation as colour.

The number is the accuracy over the last third of the rounds, the mean over seeds; of a practical
form that of the averaged model. A run that failed counts as guessing.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedsteer.records import Run
from fedsteer.records.files import look, number
from fedsteer.report.entries import FULL, Entry, gather, in_order
from fedsteer.report.figures.plotting import INK, MUTED, Figure, SubFigure
from fedsteer.report.styles import LIGHT
from fedsteer.report.tables import MISSING, count, percent, size, table

LOST = 2
"""A seed below so many times the accuracy of guessing is at chance."""
BELOW, ABOVE = -20.0, 5.0  # points to full participation with the deepest colours
ROW, GAP, MARGIN = 0.25, 0.35, 1.5  # inches of a row, rows between the forms, inches around
COSTS = (
    *("rule", "mean rank", "worst seed %", "seeds at chance"),
    *("memory", "sent up", "warm-up rounds"),
)
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
        return float(np.mean(list(self.seeds.values())))

    @property
    def worst(self) -> float:
        return min(self.seeds.values())

    @property
    def lost(self) -> int:
        """Seeds at chance."""
        return sum(value < LOST * self.guessing for value in self.seeds.values())


Place = tuple[str, str]
"""Setting and label of a rule."""


class Matrix(NamedTuple):
    """All cells, and the order of settings and of rules."""

    settings: list[str]
    ranks: dict[str, float]  # label -> mean rank within its form, practical forms first
    cells: dict[Place, Cell]
    best: set[Place]  # of every setting with partial participation: the best cell, and its equals

    def row(self, label: str) -> list[Cell | None]:
        return [self.cells.get((setting, label)) for setting in self.settings]


def matrix_figure(runs: Iterable[Run], order: Sequence[str]) -> Figure | None:
    """Settings across, rules down."""
    cells = {(entry.experiment, entry.label): _cell(entry) for entry in gather(runs)}
    cells = {place: cell for place, cell in cells.items() if cell.seeds}
    if not cells:
        return None
    settings = in_order(sorted({setting for setting, _ in cells}), order)
    matrix = Matrix(settings, ranks=_ranks(cells), cells=cells, best=_best(cells))
    height = MARGIN + ROW * (len(matrix.ranks) + GAP)
    return Figure(
        table=_tables(matrix), height=height, draw=lambda at: _draw(matrix, at), whole=True
    )


def _cell(entry: Entry) -> Cell:
    guessing = 1 / (number(entry.runs[0].manifest, "data", "classes") or np.inf)
    seeds = {}
    for run in entry.runs:
        value = None if run.failure is None else guessing
        if run.finished:
            averaged = run.late("average_accuracy") if _practical(run) else None
            value = run.late() if averaged is None else averaged
        if value is not None:
            seeds[run.seed] = value
    return Cell(entry=entry, guessing=guessing, seeds=seeds)


def _best(cells: dict[Place, Cell]) -> set[Place]:
    tops: dict[str, Cell] = {}  # by setting
    rivals = {place: cell for place, cell in cells.items() if not _full(place[1])}
    for (setting, _), cell in rivals.items():
        tops[setting] = max(tops.get(setting, cell), cell, key=lambda cell: cell.mean)
    found = set()
    for place, cell in rivals.items():
        top = tops[place[0]].seeds
        apart = [top[seed] - cell.seeds[seed] for seed in top if seed in cell.seeds]
        if apart and np.mean(apart) <= _error(apart):
            found.add(place)
    return found


def _ranks(cells: dict[Place, Cell]) -> dict[str, float]:
    """Full participation has no rivals and stands first."""
    found: dict[tuple[bool, bool, str], list[float]] = {}
    for (setting, label), cell in cells.items():
        practical = _practical(cell.entry.runs[0])
        rivals = [
            other.mean
            for (where, name), other in cells.items()
            if where == setting and not _full(name)
            if _practical(other.entry.runs[0]) == practical
        ]
        better = sum(rival > cell.mean for rival in rivals)
        at_least = sum(rival >= cell.mean for rival in rivals)
        key = (not practical, not _full(label), label)
        found.setdefault(key, []).append((better + at_least + 1) / 2)
    means = {key: float(np.mean(ranks)) for key, ranks in found.items()}
    return {key[2]: means[key] for key in sorted(means, key=lambda k: (*k[:2], means[k], k[2]))}


def _practical(run: Run) -> bool:
    return bool(look(run.manifest, "rule", "preset") == "practical")


def _full(label: str) -> bool:
    return label.startswith(FULL)


def _error(values: Collection[float]) -> float:
    return float(np.std(list(values), ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _tables(matrix: Matrix) -> str:
    """The matrix, the worst seeds, the rates chosen, and what each rule costs."""

    def grid(text: Callable[[Cell], str]) -> str:
        rows = [
            [label, *(MISSING if cell is None else text(cell) for cell in matrix.row(label))]
            for label in matrix.ranks
        ]
        return table(["rule", *matrix.settings], rows, ["rule"]).rstrip("\n")

    def value(cell: Cell) -> str:
        best = (cell.entry.experiment, cell.entry.label) in matrix.best
        mean = f"**{percent(cell.mean)}**" if best else percent(cell.mean)
        error = percent(_error(cell.seeds.values()))
        return f"{mean} ± {error}" + (f" †{cell.lost}" if cell.lost else "")

    def rate(cell: Cell) -> str:
        experiment = look(cell.entry.runs[0].manifest, "experiment")
        found = number(experiment, "server", "rate")
        tuned = "server.rate" in (look(experiment, "tuned") or ())
        return f"{found:g}" if tuned and found is not None else MISSING

    parts = [
        grid(value),
        NOTE,
        "The worst seed in %:",
        grid(lambda cell: percent(cell.worst)),
        "Server rates, chosen on training images that no client holds, under other seeds:",
        grid(rate),
        f"Costs are those in {matrix.settings[0]}:",
        table(COSTS, [_costs(matrix, label) for label in matrix.ranks], COSTS[:1]),
    ]
    return "\n\n".join(parts)


def _costs(matrix: Matrix, label: str) -> list[str]:
    own = [cell for cell in matrix.row(label) if cell is not None]
    worst = min(own, key=lambda cell: cell.worst)
    costs = []
    for key, form in (("server_bytes", size), ("bytes_up", size), ("warm_up_rounds", count)):
        found = own[0].entry.over_seeds(key)
        costs.append(MISSING if found is None else form(found.mean))
    return [
        label,
        MISSING if _full(label) else f"{matrix.ranks[label]:.1f}",
        f"{percent(worst.worst)} ({worst.entry.experiment})",
        f"{sum(cell.lost for cell in own)} of {sum(len(cell.seeds) for cell in own)}",
        *costs,
    ]


def _draw(matrix: Matrix, figure: SubFigure) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.patches import Rectangle

    scale = Normalize(BELOW, ABOVE)
    turns = [(0.0, LIGHT[0]), (float(scale(0.0)), "#ffffff"), (1.0, LIGHT[6])]
    shades = LinearSegmentedColormap.from_list("", turns)
    axes = figure.subplots()
    practical = sum(label.endswith("(practical)") for label in matrix.ranks)
    places = [row + GAP * (row >= practical) for row in range(len(matrix.ranks))]
    ceilings = matrix.row(f"{FULL} (practical)")
    for y, label in zip(places, matrix.ranks, strict=True):
        for x, (cell, full) in enumerate(zip(matrix.row(label), ceilings, strict=True)):
            if cell is None:
                axes.text(x, y, MISSING, ha="center", va="center", size=8, color=MUTED)
                continue
            colour = "white" if full is None else shades(scale(100 * (cell.mean - full.mean)))
            box = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white")
            axes.add_patch(box)
            weight = "bold" if (matrix.settings[x], label) in matrix.best else "normal"
            words = percent(cell.mean)
            axes.text(x, y, words, ha="center", va="center", size=8, weight=weight, color=INK)
            if cell.lost:
                axes.plot(x + 0.37, y - 0.29, marker="v", color=INK, markersize=3)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlim(-0.5, len(matrix.settings) - 0.5)
    axes.set_ylim(places[-1] + 0.5, -0.5)
    axes.set_yticks(places, list(matrix.ranks), color=INK)
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(matrix.settings)), matrix.settings, color=INK, rotation=40, ha="left")
    axes.set_xlabel("accuracy in %; bold: best with partial participation; ▼ a seed at chance")
    bar = figure.colorbar(
        ScalarMappable(scale, shades), ax=axes, extend="both", aspect=30, pad=0.01
    )
    bar.set_label("points to full participation")
