"""One experiment under many settings: a line per setting, a dot per rule and seed.

Under some settings a run either trains or falls to chance; a mean with an interval would hide that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.report.entries import gather, in_order, number
from fedsteer.report.figures.plotting import GRID, INK, MARGIN, add_legend, draw_dots, to_svg_text
from fedsteer.report.styles import styles
from fedsteer.report.tables import MISSING, percent, table

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

LINE = 0.31  # inches per setting
ASIDE = 0.3  # points between seeds of the same accuracy, so that all can be seen


def settings_svg(runs: Iterable[Run], title: str, order: Sequence[str]) -> str:
    """Final accuracy of every rule and seed, settings from top to bottom."""
    entries = gather(runs)
    accuracies = _accuracies(runs)
    names = in_order(sorted({name for name, _ in accuracies}), order)
    looks = dict(sorted(styles(entries).items()))

    def draw(figure: SubFigure) -> None:
        axes = figure.subplots()
        for shift, (label, look) in enumerate(looks.items()):
            # Rules stand one below the other, so that equal accuracies can all be seen.
            below = (shift - (len(looks) - 1) / 2) * 0.8 / len(looks)
            points = [
                (100 * accuracy + ASIDE * seed, place + below)
                for place, name in enumerate(names)
                for seed, accuracy in enumerate(accuracies.get((name, label), ()))
            ]
            draw_dots(axes, points, look)
        axes.set_xlim(0, 100)
        axes.set_xlabel("final test accuracy in %, one dot per seed")
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), names, color=INK)
        axes.grid(visible=False, axis="y")
        axes.hlines([place + 0.5 for place in range(len(names))], 0, 100, color=GRID, linewidth=0.8)
        add_legend(figure, looks.items(), dots=True)

    return to_svg_text(title, MARGIN + LINE * max(len(names), len(looks)), draw)


def settings_table(runs: Iterable[Run], order: Sequence[str]) -> str:
    """A row per setting, a column per rule: the mean, and every seed."""
    accuracies = _accuracies(runs)
    labels = sorted({label for _, label in accuracies})
    rows = [
        [name, *(_mean_and_seeds(accuracies.get((name, label), [])) for label in labels)]
        for name in in_order(sorted({name for name, _ in accuracies}), order)
    ]
    note = "Final accuracy in %: the mean, and in brackets every seed."
    return f"{table(['setting', *labels], rows, ['setting'])}\n{note}\n"


def _accuracies(runs: Iterable[Run]) -> dict[tuple[str, str], list[float]]:
    """(setting, rule) -> final accuracy of every seed."""
    found = {}
    for entry in gather(runs):
        known = [number(run.result, "accuracy") for run in entry.counted]
        if values := [value for value in known if value is not None]:
            found[entry.experiment, entry.label] = values
    if not found:
        raise DataError("no run has been evaluated yet: there is nothing to draw")
    return found


def _mean_and_seeds(values: Sequence[float]) -> str:
    if not values:
        return MISSING
    each = ", ".join(f"{100 * value:.0f}" for value in values)
    return f"{percent(sum(values) / len(values))} ({each})"
