"""Every rule in every setting: a number in each cell, its distance to full participation as colour.

The number is the accuracy over the last third of the rounds, the mean over seeds, of the model that
was chosen for the rule. A run that failed counts as guessing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsteer.records import Run
from fedsteer.records.files import look, number
from fedsteer.report.entries import FULL, Entry, gather, grouped, in_order
from fedsteer.report.figures.plotting import INK, MUTED, Figure, SubFigure
from fedsteer.report.styles import LIGHT
from fedsteer.report.tables import MISSING, count, percent, size, table

LOST = 2  # a seed below this many times the accuracy of guessing is at chance
BELOW, ABOVE = -20.0, 5.0  # points to full participation with the deepest colours
ROW, GAP, MARGIN = 0.25, 0.35, 1.5  # inches of a row, rows between the forms, inches around
COSTS = (
    *("rule", "mean rank", "worst seed %", "seeds at chance"),
    *("memory", "sent up", "warm-up rounds"),
)
NOTE = (
    "Accuracy in % over the last third of the rounds, of the last model or of the averaged one, as "
    "said below: means over seeds ± standard error. Bold: the best rule with partial "
    "participation, and those within one standard error of it, paired by seed. †2: two seeds at "
    "chance, below twice the accuracy of guessing; a run that failed counts as guessing. Rules "
    "stand in the order of their mean rank."
)
CHOSEN = "Server rate and model, chosen on training images that no client holds, under other seeds:"


@dataclass
class Cell:
    """One rule in one setting."""

    entry: Entry
    choice: str  # server rate and model
    guessing: float  # the accuracy of it
    seeds: dict[int | None, float]
    rank: int = 0  # within its form; 0 is full participation, which has no rivals
    best: bool = False  # or as good as the best with partial participation

    @property
    def practical(self) -> bool:
        return bool(look(self.entry.runs[0].manifest, "rule", "preset") == "practical")

    @property
    def full(self) -> bool:
        return self.entry.rule == FULL

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


Rows = dict[str, dict[str, Cell]]
"""Label of a rule -> setting -> cell; practical forms first."""


def matrix_figure(runs: Iterable[Run], sheet: Mapping[str, Any]) -> Figure | None:
    """Settings across, rules down."""
    cells = [cell for entry in gather(runs) if (cell := _cell(entry, sheet)).seeds]
    if not cells:
        return None
    columns = grouped(cells, lambda cell: cell.entry.experiment)
    for column in columns.values():
        _compare(column)
    settings = in_order(sorted(columns), sheet.get("paper") or ())
    found = grouped(cells, lambda cell: cell.entry.label)
    order = sorted(found, key=lambda k: (not found[k][0].practical, _mean_rank(found[k]), k))
    rows: Rows = {k: {cell.entry.experiment: cell for cell in found[k]} for k in order}
    for setting, other in (sheet.get("ceilings") or {}).items():
        for row in rows.values():  # the same run
            if setting in settings and other in row and row[other].full:
                row.setdefault(setting, row[other])
    height = MARGIN + ROW * (len(rows) + GAP)
    return Figure(
        table=_tables(rows, settings),
        height=height,
        draw=lambda at: _draw(rows, settings, at),
        whole=True,
    )


def _cell(entry: Entry, sheet: Mapping[str, Any]) -> Cell:
    guessing = 1 / (number(entry.runs[0].manifest, "data", "classes") or np.inf)
    chosen = look(sheet, "tuning", entry.experiment, entry.label)
    model, rate = look(chosen, "model") or "last", number(chosen, "rate")
    seeds = {}
    for run in entry.runs:
        value = None if run.failure is None else guessing
        if run.finished:
            value = run.late("average_accuracy" if model == "averaged" else "accuracy")
        if value is not None:
            seeds[run.seed] = value
    choice = model if rate is None else f"{rate:g}, {model}"
    return Cell(entry=entry, choice=choice, guessing=guessing, seeds=seeds)


def _compare(column: Iterable[Cell]) -> None:
    """Find ranks and the best in one setting."""
    rivals = sorted((cell for cell in column if not cell.full), key=lambda cell: -cell.mean)
    for cell in rivals:
        means = [other.mean for other in rivals if other.practical == cell.practical]
        cell.rank = 1 + means.index(cell.mean)
        top = rivals[0].seeds
        apart = [top[seed] - cell.seeds[seed] for seed in top if seed in cell.seeds]
        cell.best = bool(apart) and bool(np.mean(apart) <= _error(apart))


def _mean_rank(cells: Collection[Cell]) -> float:
    return float(np.mean([cell.rank for cell in cells]))


def _error(values: Collection[float]) -> float:
    return float(np.std(list(values), ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _value(cell: Cell) -> str:
    mean, error = percent(cell.mean), percent(_error(cell.seeds.values()))
    lost = f" †{cell.lost}" if cell.lost else ""
    return (f"**{mean}**" if cell.best else mean) + f" ± {error}{lost}"


def _tables(rows: Rows, settings: Sequence[str]) -> str:
    """The matrix, the worst seeds, what was chosen, and what each rule costs."""
    parts = []
    for heading, text in (
        ("", _value),
        (f"{NOTE}\n\nThe worst seed in %:", lambda cell: percent(cell.worst)),
        (CHOSEN, lambda cell: cell.choice),
    ):
        lines = [
            [label, *(text(row[one]) if one in row else MISSING for one in settings)]
            for label, row in rows.items()
        ]
        parts += [heading, table(["rule", *settings], lines, ["rule"])]
    costs = [_costs(label, row) for label, row in rows.items()]
    parts += [f"Costs are those in {settings[0]}:", table(COSTS, costs, COSTS[:1])]
    return "\n\n".join(part.rstrip("\n") for part in parts if part)


def _costs(label: str, row: Mapping[str, Cell]) -> list[str]:
    own = [cell for setting, cell in row.items() if cell.entry.experiment == setting]
    worst = min(own, key=lambda cell: cell.worst)
    costs = []
    for key, form in (("server_bytes", size), ("bytes_up", size), ("warm_up_rounds", count)):
        found = own[0].entry.over_seeds(key)
        costs.append(MISSING if found is None else form(found.mean))
    return [
        label,
        MISSING if own[0].full else f"{_mean_rank(own):.1f}",
        f"{percent(worst.worst)} ({worst.entry.experiment})",
        f"{sum(cell.lost for cell in own)} of {sum(len(cell.seeds) for cell in own)}",
        *costs,
    ]


def _draw(rows: Rows, settings: Sequence[str], figure: SubFigure) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.patches import Rectangle

    scale = Normalize(BELOW, ABOVE)
    turns = [(0.0, LIGHT[0]), (float(scale(0.0)), "#ffffff"), (1.0, LIGHT[6])]
    shades = LinearSegmentedColormap.from_list("", turns)
    axes = figure.subplots()
    ceiling = rows.get(f"{FULL} (practical)", {})
    practical = sum(label.endswith("(practical)") for label in rows)
    places = [line + GAP * (line >= practical) for line in range(len(rows))]
    for y, row in zip(places, rows.values(), strict=True):
        for x, setting in enumerate(settings):
            if (cell := row.get(setting)) is None:
                axes.text(x, y, MISSING, ha="center", va="center", size=8, color=MUTED)
                continue
            full = ceiling.get(setting)
            colour = "white" if full is None else shades(scale(100 * (cell.mean - full.mean)))
            box = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white")
            axes.add_patch(box)
            weight = "bold" if cell.best else "normal"
            words = percent(cell.mean)
            axes.text(x, y, words, ha="center", va="center", size=8, weight=weight, color=INK)
            if cell.lost:
                axes.plot(x + 0.37, y - 0.29, marker="v", color=INK, markersize=3)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlim(-0.5, len(settings) - 0.5)
    axes.set_ylim(places[-1] + 0.5, -0.5)
    axes.set_yticks(places, list(rows), color=INK)
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(settings)), settings, color=INK, rotation=40, ha="left")
    axes.set_xlabel("accuracy in %; bold: best with partial participation; ▼ a seed at chance")
    colours = ScalarMappable(scale, shades)
    bar = figure.colorbar(colours, ax=axes, extend="both", aspect=30, pad=0.01)
    bar.set_label("points to full participation")
