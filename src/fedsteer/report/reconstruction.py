"""How wrong the server's picture of a client is when the client comes back.

reused       what the rule held: old coordinates on today's basis, or the plain stale update
recomputed   coordinates computed from the very update: the best today's basis can do
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.report.drawing import looks_by_label
from fedsteer.report.entries import Entry, gather, look, names_of, number
from fedsteer.report.formats import bars, hundredths, markdown, with_half
from fedsteer.report.statistics import Estimate, estimate
from fedsteer.report.svg import Axis, Look, Panel, Point, document, legend
from fedsteer.report.visits import bin_centre, bin_of, bin_words

SPAN = 10  # training rounds in a bin
Means = dict[int, Estimate]
"""Bin -> mean over seeds of the mean within a seed."""


@dataclass
class Series:
    """One kind of error of one rule."""

    name: str
    look: Look
    by_staleness: Means = field(default_factory=dict)
    by_round: Means = field(default_factory=dict)


def series_of(runs: Iterable[Run]) -> list[Series]:
    """Every rule's errors, where the client rows are there."""
    entries = gather(runs)
    looks = looks_by_label(entries)
    found = []
    for name, entry in zip(names_of(entries), entries, strict=True):
        for key, words in (("relative_error", ""), ("refreshed_error", ", recomputed")):
            plain = looks[entry.label]
            dotted = Look(plain.colour, "dot" if plain.dash == "solid" else "dashdot")
            one = Series(name + words, dotted if words else plain)
            _fill(one, entry, key)
            if one.by_staleness:
                found.append(one)
    if not found:
        raise DataError("no client rows with errors: pack with --clients all, or report the runs")
    return found


def errors_svg(runs: Iterable[Run], title: str) -> str:
    """Relative error over staleness and over training rounds."""
    series = series_of(runs)
    means = [one.mean for s in series for m in (s.by_staleness, s.by_round) for one in m.values()]
    low = max(min(means), 1e-4) / 1.3
    high = max(*means, 1.0) * 1.3
    up = Axis(low, high, log=True)
    stale = {at for one in series for at in one.by_staleness}
    late = {at for one in series for at in one.by_round}
    panels = (
        (
            Panel(56, 62, 330, 300, Axis(1, max(2.0, *map(_centre, stale)), log=True), up),
            "rounds since the last visit; relative squared error",
        ),
        (
            Panel(456, 62, 330, 300, Axis(0, max(map(_middle, late))), up),
            "training rounds; relative squared error",
        ),
    )
    parts = [panel.frame("", words) for panel, words in panels]
    for one in series:
        parts.append(panels[0][0].line(_points(one.by_staleness, _centre), one.look))
        parts.append(panels[1][0].line(_points(one.by_round, _middle), one.look))
    names = [(one.name, one.look, "") for one in series]
    return document(1090, 424, title, [*parts, *legend(808, 72, 1080, names)])


def errors_markdown(runs: Iterable[Run]) -> str:
    """A row per span of staleness, a column per series."""
    series = series_of(runs)
    headings = ["rounds away", *(markdown(one.name) for one in series)]
    lines = [bars(headings), bars(["--:"] * len(headings))]
    for at in sorted({at for one in series for at in one.by_staleness}):
        found = [one.by_staleness.get(at) for one in series]
        lines.append(bars([bin_words(at), *(with_half(e, hundredths, hundredths) for e in found)]))
    note = (
        "Squared error of the server's estimate of an update, relative to the update's squared "
        "length: 1 is what knowing nothing gives. Means over clients, then over seeds, ± 95 %."
    )
    return "\n".join([*lines, "", note]) + "\n"


def _fill(series: Series, entry: Entry, key: str) -> None:
    stale: dict[int, list[float]] = {}
    late: dict[int, list[float]] = {}
    for run in entry.shown:
        warm_up = number(run.result, "warm_up_rounds") or 0.0
        own_stale: dict[int, list[float]] = {}
        own_late: dict[int, list[float]] = {}
        for row in run.rows("clients"):
            away, error = number(row, "staleness"), number(row, key)
            moment = (number(row, "round") or 0.0) - warm_up
            if error is None or away is None or look(row, "event") != "fresh" or moment < 1:
                continue
            if away >= 1:
                own_stale.setdefault(bin_of(away), []).append(error)
                own_late.setdefault((int(moment) - 1) // SPAN, []).append(error)
        for own, over_seeds in ((own_stale, stale), (own_late, late)):
            for at, values in own.items():
                over_seeds.setdefault(at, []).append(float(np.mean(values)))
    for means, target in ((stale, series.by_staleness), (late, series.by_round)):
        for at in sorted(means):
            found = estimate(means[at])
            if found is not None:
                target[at] = found


def _points(means: Means, place: Callable[[int], float]) -> Sequence[Point]:
    return [(place(at), one.mean, one.half or 0.0) for at, one in means.items()]


def _centre(at: int) -> float:
    return float(bin_centre(at) or 1.0)


def _middle(at: int) -> float:
    return SPAN * (at + 0.5)
