"""Accuracy over rounds as a plain SVG file, for a README or a paper; one panel per experiment.

The same records give the same bytes, so a committed picture can be checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.report.curves import accuracy_curve
from fedsteer.report.entries import Entry, gather, in_order
from fedsteer.report.styles import styles
from fedsteer.report.svg import COLOURS, LINE, Axis, Look, Panel, document, legend, text

AXES = {"train": "training rounds", "all": "all rounds, warm-up included", "sent": "sent"}
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
LEFT, TOP, BOTTOM = 56, 62, 50  # margins around a panel
GAP, LEGEND, EDGE = 18, 216, 12
WIDE, NARROW = (612, 334), (330, 230)  # of a panel that stands alone, and of several
ABREAST = 3
COMPETES = 0.3
"""Rules that end this much below the best do not decide which accuracies are shown."""


@dataclass(frozen=True)
class Drawn:
    """The curve of one rule in one experiment."""

    experiment: str
    label: str
    curve: dict[str, Any]
    last: float  # accuracy
    spread: float  # half of its interval


def to_svg(
    runs: Iterable[Run], title: str, axes: Sequence[str] = ("train",), order: Sequence[str] = ()
) -> str:
    """Mean accuracy of every rule with 95 % intervals over seeds, over each of these axes.

    train   training rounds
    all     all rounds: what a rule does before training begins is counted
    sent    bytes sent by clients and server so far

    order   experiments whose panels come first
    """
    entries = gather(runs)
    drawn = [found for entry in entries if (found := _drawn(entry)) is not None]
    if not drawn:
        raise DataError("no run has been evaluated yet: there is nothing to draw")
    looks = looks_by_label(entries)
    experiments = in_order({one.experiment for one in drawn}, order)
    kept = [axis for axis in axes if any(axis in one.curve for one in drawn)] or ["train"]
    panels = [(experiment, axis) for experiment in experiments for axis in kept]
    known = {(one.experiment, axis) for one in drawn for axis in one.curve}
    abreast = len(kept) if len(kept) > 1 else min(ABREAST, len(panels))
    wide, high = WIDE if len(panels) == 1 else NARROW
    parts: list[str] = []
    for place, (experiment, axis) in enumerate(panels):
        if (experiment, axis) not in known:
            continue
        here = [one for one in drawn if one.experiment == experiment and axis in one.curve]
        left = LEFT + (place % abreast) * (LEFT + wide + GAP)
        top = TOP + (place // abreast) * (TOP + high + BOTTOM - EDGE)
        heading = experiment if len(experiments) > 1 else ""
        parts += _panel(here, axis, looks, (left, top, wide, high), heading)
    rows = -(-len(panels) // abreast)
    right = abreast * (LEFT + wide + GAP)
    key = _names(drawn, looks, with_value=len(experiments) == 1)
    parts += legend(right, TOP + 10, right + LEGEND, key)
    high_enough = max(rows * (TOP + high + BOTTOM - EDGE) + EDGE, TOP + 10 + LINE * len(key))
    return document(right + LEGEND + EDGE, high_enough, title, parts)


def looks_by_label(entries: Sequence[Entry]) -> dict[str, Look]:
    """A rule looks the same in every experiment."""
    first = {entry.label: entry for entry in reversed(entries)}
    chosen = styles(list(first.values()))
    return {
        label: Look(COLOURS[int(style["colour"])], str(style["dash"]))
        for label, style in zip(first, chosen, strict=True)
    }


def _drawn(entry: Entry) -> Drawn | None:
    curve = accuracy_curve(entry.shown)
    if curve is None:
        return None
    last = next((value for value in reversed(curve["mean"]) if value is not None), 0.0)
    spread = next((half for half in reversed(curve["half"]) if half is not None), 0.0)
    return Drawn(entry.experiment, entry.label, curve, last, spread)


def _panel(
    drawn: Sequence[Drawn],
    axis: str,
    looks: dict[str, Look],
    place: tuple[float, float, float, float],
    heading: str,
) -> list[str]:
    values = [value for one in drawn for value in one.curve[axis] if value]
    most = max(values, default=1.0)
    scale, words, across = 1.0, AXES[axis], Axis(0, most)
    if axis == "sent":  # by a factor of ten apart: full participation sends most
        scale, unit = next((pair for pair in UNITS if most >= pair[0]), UNITS[-1])
        words = f"{unit} sent, both ways"
        across = Axis(min(values, default=1.0) / scale, most / scale, log=True)
    low = _lowest_shown(drawn)
    best = max(value for one in drawn for value in _means(one))
    high = min(100, 10 * ceil(10 * best + 0.05))
    panel = Panel(*place, across, Axis(low, high))
    parts = [panel.frame(heading, f"{words}; test accuracy in %")]
    hidden = [one.label for one in drawn if 100 * one.last < low]
    if hidden:
        left, top, wide, tall = place
        note = f"below {low:g}: {', '.join(hidden)}"
        parts.append(text(left + wide - 4, top + tall - 8, note, "end", "#555", size=11))
    for one in sorted(drawn, key=lambda one: one.last):
        columns = (one.curve[axis], one.curve["mean"], one.curve["half"])
        points = [
            ((x or 0.0) / scale, 100 * mean, 100 * (half or 0.0))
            for x, mean, half in zip(*columns, strict=True)
            if mean is not None
        ]
        # Seeds of which some fell to chance: a band as high as the picture would tell nothing.
        if max(half for _, _, half in points) > (high - low) / 2:
            points = [(x, mean, 0.0) for x, mean, _ in points]
        parts.append(panel.line(points, looks[one.label]))
    return parts


def _lowest_shown(drawn: Sequence[Drawn]) -> float:
    """In percent: where the slowest of the rules that compete stands after a third of its rounds,
    or at its end in a bad seed.

    A rule that ends far behind would press the others together at the top.
    """
    best = max(one.last for one in drawn)
    rivals = [one for one in drawn if one.last > best - COMPETES]
    lowest = min(min(one.last - one.spread, _means(one)[len(_means(one)) // 3]) for one in rivals)
    return 10.0 * max(0, floor(10 * lowest - 0.5))


def _means(one: Drawn) -> list[float]:
    return [value for value in one.curve["mean"] if value is not None]


def _names(
    drawn: Sequence[Drawn], looks: dict[str, Look], with_value: bool
) -> list[tuple[str, Look, str]]:
    """Best first; with several experiments, by the sum over them."""
    sums: dict[str, float] = {}
    for one in drawn:
        sums[one.label] = sums.get(one.label, 0.0) + one.last
    ranked = sorted(sums, key=lambda label: (-sums[label], label))
    value = "{:.1f}".format if with_value else lambda share: ""
    return [(label, looks[label], value(100 * sums[label])) for label in ranked]
