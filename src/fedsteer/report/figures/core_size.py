"""Final accuracy over the size of the core set, one line per ridge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.report.entries import Entry, gather, number, seed_of
from fedsteer.report.figures.plotting import add_legend, draw_line, to_svg_text
from fedsteer.report.statistics import Estimate, estimate
from fedsteer.report.styles import LIGHT, Style
from fedsteer.report.tables import MISSING, percent, points, table, with_half

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure


@dataclass(frozen=True)
class Size:
    """One size of the core set under one ridge."""

    ridge: float
    columns: int
    accuracies: dict[int, float]  # by seed

    @property
    def accuracy(self) -> Estimate:
        """Over seeds."""
        found = estimate(self.accuracies.values())
        assert found is not None
        return found


def core_size_svg(runs: Iterable[Run], title: str, order: Sequence[str]) -> str:
    """Accuracy over size with 95 % intervals over seeds."""
    sizes = _sizes(runs)
    looks = {
        ridge: Style(colour=place % len(LIGHT), dash="solid", marker="circle")
        for place, ridge in enumerate(_ridges(sizes))
    }

    def draw(figure: SubFigure) -> None:
        axes = figure.subplots()
        for ridge, look in looks.items():
            here = [size for size in sizes if size.ridge == ridge]
            x = [size.columns for size in here]
            mean = [100 * size.accuracy.mean for size in here]
            half = [100 * (size.accuracy.half or 0.0) for size in here]
            draw_line(axes, x, mean, half, look, marker="o")
        axes.set_xlim(left=0)
        axes.set_xlabel("clients in the core set")
        axes.set_ylabel("final test accuracy in %")
        add_legend(figure, [(f"ridge {ridge:g}", look) for ridge, look in looks.items()])

    return to_svg_text(title, 4.0, draw)


def core_size_table(runs: Iterable[Run], order: Sequence[str]) -> str:
    """A row per size, a column per ridge, and the difference of two ridges paired by seed."""
    sizes = _sizes(runs)
    ridges = _ridges(sizes)
    by_place = {(size.columns, size.ridge): size for size in sizes}
    rows = []
    for columns in sorted({size.columns for size in sizes}):
        here = [by_place.get((columns, ridge)) for ridge in ridges]
        cells = [MISSING if size is None else with_half(size.accuracy, percent) for size in here]
        difference = [_difference(*here)] if len(ridges) == 2 else []
        rows.append([str(columns), *cells, *difference])
    headings = ["core set", *(f"ridge {ridge:g} %" for ridge in ridges)]
    headings += ["difference"] if len(ridges) == 2 else []
    return table(headings, rows, words=())


def _sizes(runs: Iterable[Run]) -> list[Size]:
    """Entries whose rule has a core size and a ridge, by ridge (largest first) and size."""
    found = [size for entry in gather(runs) if (size := _size(entry)) is not None]
    if not found:
        raise DataError("no finished run names core_size and ridge: there is nothing to draw")
    return sorted(found, key=lambda size: (-size.ridge, size.columns))


def _size(entry: Entry) -> Size | None:
    options = entry.runs[0].manifest.get("rule", {}).get("options", {})
    columns, ridge = number(options, "core_size"), number(options, "ridge")
    pairs = [(seed_of(run), number(run.result, "accuracy")) for run in entry.counted]
    known = {seed: value for seed, value in pairs if seed is not None and value is not None}
    if columns is None or ridge is None or not known:
        return None
    return Size(ridge=ridge, columns=int(columns), accuracies=known)


def _ridges(sizes: Iterable[Size]) -> list[float]:
    return list(dict.fromkeys(size.ridge for size in sizes))


def _difference(first: Size | None, second: Size | None) -> str:
    if first is None or second is None:
        return MISSING
    both = sorted(first.accuracies.keys() & second.accuracies.keys())
    pairs = (first.accuracies[seed] - second.accuracies[seed] for seed in both)
    return with_half(estimate(pairs), points)
