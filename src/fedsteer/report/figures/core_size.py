"""Final accuracy over the size of the core set, one line per ridge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.report.entries import gather, look, number, seed_of
from fedsteer.report.figures.plotting import add_legend, draw_line, to_svg_text
from fedsteer.report.statistics import Estimate, estimate
from fedsteer.report.styles import LIGHT, Style
from fedsteer.report.tables import percent, points, table, with_half

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

Accuracies = dict[float, dict[int, dict[int, float]]]
"""Ridge -> size of the core set -> seed -> final accuracy."""


def core_size_svg(runs: Iterable[Run], title: str, order: Sequence[str]) -> str:
    """Accuracy over size with 95 % intervals over seeds."""
    accuracies = _accuracies(runs)

    def draw(figure: SubFigure) -> None:
        axes = figure.subplots()
        names = []
        for place, (ridge, sizes) in enumerate(accuracies.items()):
            style = Style(colour=place % len(LIGHT), dash="solid", marker="circle")
            found = [(size, _mean(seeds)) for size, seeds in sizes.items()]
            line = [(size, 100 * one.mean, 100 * (one.half or 0.0)) for size, one in found if one]
            draw_line(axes, line, style, marker="o")
            names.append((f"ridge {ridge:g}", style))
        axes.set_xlim(left=0)
        axes.set_xlabel("clients in the core set")
        axes.set_ylabel("final test accuracy in %")
        add_legend(figure, names)

    return to_svg_text(title, 4.0, draw)


def core_size_table(runs: Iterable[Run], order: Sequence[str]) -> str:
    """A row per size, a column per ridge, and the difference of two ridges paired by seed."""
    accuracies = _accuracies(runs)
    headings = ["core set", *(f"ridge {ridge:g} %" for ridge in accuracies)]
    headings += ["difference"] if len(accuracies) == 2 else []
    rows = []
    for size in sorted({size for sizes in accuracies.values() for size in sizes}):
        here = [sizes.get(size, {}) for sizes in accuracies.values()]
        cells = [with_half(_mean(seeds), percent) for seeds in here]
        if len(here) == 2:
            first, second = here
            both = sorted(first.keys() & second.keys())
            cells.append(with_half(_mean({s: first[s] - second[s] for s in both}), points))
        rows.append([str(size), *cells])
    return table(headings, rows, words=())


def _accuracies(runs: Iterable[Run]) -> Accuracies:
    """Of the rules with a core size and a ridge; the largest ridge first."""
    found: Accuracies = {}
    for entry in gather(runs):
        options = look(entry.runs[0].manifest, "rule", "options")
        size, ridge = number(options, "core_size"), number(options, "ridge")
        pairs = [(seed_of(run), number(run.result, "accuracy")) for run in entry.counted]
        known = {seed: value for seed, value in pairs if seed is not None and value is not None}
        if size is not None and ridge is not None and known:
            found.setdefault(ridge, {})[int(size)] = known
    if not found:
        raise DataError("no finished run names core_size and ridge: there is nothing to draw")
    return {ridge: dict(sorted(found[ridge].items())) for ridge in sorted(found, reverse=True)}


def _mean(seeds: dict[int, float]) -> Estimate | None:
    return estimate(seeds.values())
