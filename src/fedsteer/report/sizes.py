"""Final accuracy over the size of the core set, one line for each ridge: the paper's figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.report.entries import Entry, gather, number, seed_of
from fedsteer.report.formats import bars, percent, points, with_half
from fedsteer.report.statistics import Estimate, estimate
from fedsteer.report.svg import COLOURS, Axis, Look, Panel, document, legend

LOOKS = tuple(Look(colour, dash) for dash in ("solid", "dash") for colour in COLOURS)


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


def sizes_of(runs: Iterable[Run]) -> list[Size]:
    """The entries that name a size and a ridge, by ridge (largest first) and size."""
    found = [size for entry in gather(runs) if (size := _size(entry)) is not None]
    if not found:
        raise DataError("no finished run names core_size and ridge: there is nothing to draw")
    return sorted(found, key=lambda size: (-size.ridge, size.columns))


def sizes_svg(runs: Iterable[Run], title: str) -> str:
    """Accuracy over size with 95 % intervals over seeds."""
    sizes = sizes_of(runs)
    ends = [
        100 * (size.accuracy.mean + side * (size.accuracy.half or 0.0))
        for size in sizes
        for side in (-1, 1)
    ]
    spread = max(max(ends) - min(ends), 1.0)
    low, high = max(min(ends) - 0.05 * spread, 0.0), min(max(ends) + 0.05 * spread, 100.0)
    across = Axis(0, max(size.columns for size in sizes))
    panel = Panel(56, 62, 560, 300, across, Axis(low, high))
    parts = [panel.frame("", "clients in the core set; final test accuracy in %")]
    names = []
    for look, ridge in zip(LOOKS, dict.fromkeys(size.ridge for size in sizes), strict=False):
        points = [
            (float(one.columns), 100 * one.accuracy.mean, 100 * (one.accuracy.half or 0.0))
            for one in sizes
            if one.ridge == ridge
        ]
        parts.append(panel.line(points, look, dots=True))
        names.append((f"ridge {ridge:g}", look, ""))
    return document(790, 424, title, [*parts, *legend(650, 72, 780, names)])


def sizes_markdown(runs: Iterable[Run]) -> str:
    """A row per size, a column per ridge, and their difference paired by seed."""
    sizes = sizes_of(runs)
    ridges = list(dict.fromkeys(size.ridge for size in sizes))
    by_place = {(size.columns, size.ridge): size for size in sizes}
    headings = ["core set", *(f"ridge {ridge:g} %" for ridge in ridges)]
    if len(ridges) == 2:
        headings.append("difference")
    lines = [bars(headings), bars(["--:"] * len(headings))]
    for columns in sorted({size.columns for size in sizes}):
        here = [by_place.get((columns, ridge)) for ridge in ridges]
        cells = [with_half(None if one is None else one.accuracy, percent) for one in here]
        if len(ridges) == 2:
            cells.append(_apart(here))
        lines.append(bars([str(columns), *cells]))
    return "\n".join(lines) + "\n"


def _size(entry: Entry) -> Size | None:
    options = entry.runs[0].manifest.get("rule", {}).get("options", {})
    columns, ridge = number(options, "core_size"), number(options, "ridge")
    pairs = [(seed_of(run), number(run.result, "accuracy")) for run in entry.counted]
    known = {seed: value for seed, value in pairs if seed is not None and value is not None}
    if columns is None or ridge is None or not known:
        return None
    return Size(ridge, int(columns), known)


def _apart(pair: Sequence[Size | None]) -> str:
    first, second = pair
    if first is None or second is None:
        return "-"
    both = first.accuracies.keys() & second.accuracies.keys()
    found = estimate(first.accuracies[seed] - second.accuracies[seed] for seed in sorted(both))
    return with_half(found, points)
