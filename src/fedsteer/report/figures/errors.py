"""How wrong the server's picture of a client is when the client comes back.

reused       what the rule held: old coordinates on today's basis, or the plain stale update
recomputed   coordinates computed from the very update: the best today's basis can do
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.records.pack import shortened
from fedsteer.report.entries import Entry, gather, look, names_of, number
from fedsteer.report.figures.plotting import add_legend, draw_line, set_log_ticks, to_svg_text
from fedsteer.report.formats import hundredths, table, with_half
from fedsteer.report.statistics import Estimate, estimate
from fedsteer.report.styles import Style, styles
from fedsteer.report.visits import bin_centre, bin_of, bin_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

SPAN = 10  # training rounds in a bin
Means = dict[int, Estimate]
"""Bin -> mean over seeds of the mean within a seed."""


@dataclass(frozen=True)
class Series:
    """One kind of error of one rule."""

    name: str
    style: Style
    by_staleness: Means
    by_round: Means


def errors_svg(runs: Iterable[Run], title: str, order: Sequence[str]) -> str:
    """Relative error over staleness and over training rounds."""
    series = _series(runs)
    means = [e.mean for s in series for m in (s.by_staleness, s.by_round) for e in m.values()]
    low, high = max(min(means), 1e-4) / 1.3, max(*means, 1.0) * 1.3

    def draw(figure: SubFigure) -> None:
        by_staleness, by_round = figure.subplots(1, 2, sharey=True)
        for one in series:
            _draw(
                by_staleness,
                {float(bin_centre(at) or 1): e for at, e in one.by_staleness.items()},
                one,
            )
            _draw(by_round, {SPAN * (at + 0.5): e for at, e in one.by_round.items()}, one)
        by_staleness.set_yscale("log")
        by_staleness.set_ylim(low, high)
        by_staleness.set_ylabel("relative squared error")
        by_staleness.set_xscale("log")
        by_staleness.set_xlim(left=1)
        by_staleness.set_xlabel("rounds since the last visit")
        by_round.set_xlim(left=0)
        by_round.set_xlabel("training rounds")
        set_log_ticks(by_staleness.xaxis)
        set_log_ticks(by_staleness.yaxis)
        add_legend(figure, [(one.name, one.style) for one in series])

    return to_svg_text(title, 4.0, draw)


def errors_table(runs: Iterable[Run], order: Sequence[str]) -> str:
    """A row per span of staleness, a column per series."""
    series = _series(runs)
    rows = []
    for at in sorted({at for one in series for at in one.by_staleness}):
        found = [one.by_staleness.get(at) for one in series]
        rows.append([bin_words(at), *(with_half(e, hundredths, hundredths) for e in found)])
    note = (
        "Squared error of the server's estimate of an update, relative to the update's squared "
        "length: 1 is what knowing nothing gives. Means over clients, then over seeds, ± 95 %."
    )
    return f"{table(['rounds away', *(one.name for one in series)], rows, ())}\n{note}\n"


def _draw(axes: Axes, means: dict[float, Estimate], series: Series) -> None:
    mean = [one.mean for one in means.values()]
    half = [one.half or 0.0 for one in means.values()]
    draw_line(axes, list(means), mean, half, series.style)


def _series(runs: Iterable[Run]) -> list[Series]:
    """The errors of every rule whose rows of clients are there."""
    entries = gather(runs)
    looks = styles(entries)
    found = []
    for name, entry in zip(names_of(entries), entries, strict=True):
        reused = looks[entry.label]
        dash = "dot" if reused.dash == "solid" else "dashdot"
        recomputed = Style(colour=reused.colour, dash=dash, marker=reused.marker)
        found.append(_series_of(entry, "relative_error", name, reused))
        found.append(_series_of(entry, "refreshed_error", f"{name}, recomputed", recomputed))
    found = [one for one in found if one.by_staleness]
    if not found:
        raise DataError("no client rows with errors: pack with --clients all, or report the runs")
    return found


def _series_of(entry: Entry, key: str, name: str, style: Style) -> Series:
    by_staleness: dict[int, list[float]] = {}
    by_round: dict[int, list[float]] = {}
    for run in entry.shown:
        warm_up = number(run.result, "warm_up_rounds") or 0.0
        own_stale: dict[int, list[float]] = {}
        own_round: dict[int, list[float]] = {}
        for row in run.rows("clients"):
            away, error = number(row, "staleness"), number(row, key)
            training_round = (number(row, "round") or 0.0) - warm_up
            if error is None or away is None or away < 1 or look(row, "event") != "fresh":
                continue
            if training_round >= 1:
                error = float(shortened(error))  # as in packed records, so that both give the same
                own_stale.setdefault(bin_of(away), []).append(error)
                own_round.setdefault((int(training_round) - 1) // SPAN, []).append(error)
        for own, over_seeds in ((own_stale, by_staleness), (own_round, by_round)):
            for at, errors in own.items():
                over_seeds.setdefault(at, []).append(float(np.mean(errors)))
    return Series(
        name=name, style=style, by_staleness=_means(by_staleness), by_round=_means(by_round)
    )


def _means(over_seeds: dict[int, list[float]]) -> Means:
    found = {at: estimate(over_seeds[at]) for at in sorted(over_seeds)}
    return {at: one for at, one in found.items() if one is not None}
