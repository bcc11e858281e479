"""Accuracy over rounds or over bytes, for a README or a paper; one panel per experiment."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from math import ceil, floor
from typing import Any

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.report.curves import accuracy_curve
from fedsteer.report.entries import gather, in_order
from fedsteer.report.figures import plotting
from fedsteer.report.styles import Style, styles

AXES = {"train": "training rounds", "all": "all rounds, warm-up included", "sent": "sent"}
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
ABREAST = 2
HEIGHT_ALONE, HEIGHT = 3.9, 2.6  # inches of a panel
COMPETES = 0.3  # rules that end this much below the best do not decide what is shown
Curves = dict[str, Any]  # rule -> its `accuracy_curve`


def to_svg(
    runs: Iterable[Run], title: str, axes: Sequence[str] = ("train",), order: Sequence[str] = ()
) -> str:
    """Mean accuracy of every rule with 95 % intervals over seeds, as an SVG picture.

    axes    what to draw it over, a column of panels each; see `accuracy_curve`
    order   experiments whose panels come first
    """
    entries = gather(runs)
    curves = [(entry, curve) for entry in entries if (curve := accuracy_curve(entry.shown))]
    if not curves:
        raise DataError("no run has been evaluated yet: there is nothing to draw")
    looks = styles(entries)
    experiments = in_order(sorted({entry.experiment for entry, _ in curves}), order)
    kept = [axis for axis in axes if any(axis in curve for _, curve in curves)]
    panels = [(experiment, axis) for experiment in experiments for axis in kept]
    columns = len(kept) if len(kept) > 1 else min(ABREAST, len(panels))
    rows = -(-len(panels) // columns)
    sums: Counter[str] = Counter()  # of the final accuracies
    for entry, curve in curves:
        sums[entry.label] += curve["mean"][-1]
    ranked = sorted(sums, key=lambda label: (-sums[label], label))
    names = [
        (label if len(experiments) > 1 else f"{100 * sums[label]:.1f}  {label}", looks[label])
        for label in ranked
    ]

    def draw(figure: plotting.SubFigure) -> None:
        grid = figure.subplots(rows, columns, squeeze=False)
        for place, panel in enumerate(grid.flat):
            experiment, axis = panels[place] if place < len(panels) else ("", "")
            own = [(entry, curve) for entry, curve in curves if entry.experiment == experiment]
            here = {entry.label: curve for entry, curve in own if axis in curve}
            if not here:
                panel.remove()
                continue
            _draw_panel(panel, here, axis, looks)
            if len(experiments) > 1:
                panel.set_title(experiment)
            if place % columns == 0:
                panel.set_ylabel("test accuracy in %")
        plotting.add_legend(figure, names, "final accuracy in %" if len(experiments) == 1 else "")

    panel_height = HEIGHT_ALONE if len(panels) == 1 else HEIGHT
    height = plotting.MARGIN + max(rows * panel_height, plotting.LEGEND_LINE * len(names))
    return plotting.Figure(table="", height=height, draw=draw).svg(title)


def _draw_panel(panel: plotting.Axes, curves: Curves, axis: str, looks: dict[str, Style]) -> None:
    low = _lowest_shown(curves.values())
    high = min(100, 10 * ceil(10 * max(max(curve["mean"]) for curve in curves.values()) + 0.05))
    reached = [value for curve in curves.values() for value in curve[axis] if value] or [1]
    scale, words = 1.0, AXES[axis]
    if axis == "sent":
        scale, unit = next((unit for unit in UNITS if max(reached) >= unit[0]), UNITS[-1])
        words = f"{unit} sent, both ways"
    for label, curve in sorted(curves.items(), key=lambda item: float(item[1]["mean"][-1])):
        columns = curve[axis], curve["mean"], curve["half"]
        points = [
            ((x or 0.0) / scale, 100 * mean, 100 * (half or 0.0))
            for x, mean, half in zip(*columns, strict=True)
        ]
        # If some seeds fell to chance, a band as high as the panel would tell nothing.
        if max(half for _, _, half in points) > (high - low) / 2:
            points = [(x, mean, 0.0) for x, mean, _ in points]
        plotting.draw_line(panel, points, looks[label])
    panel.locator_params(nbins=5, steps=(1, 2, 5, 10))
    panel.set_ylim(low, high)
    panel.set_xlabel(words)
    if axis == "sent":  # rules are far apart: full participation sends ten times as much
        panel.set_xscale("log")
        if max(reached) > min(reached):
            panel.set_xlim(min(reached) / scale, max(reached) / scale)
        plotting.set_log_ticks(panel.xaxis)
    else:
        panel.set_xlim(0, max(reached))
    hidden = [label for label, curve in curves.items() if 100 * curve["mean"][-1] < low]
    if hidden:
        words = f"below {low:g}: {', '.join(hidden)}"
        box = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}
        panel.text(0.99, 0.02, words, color=plotting.MUTED, size=9, ha="right", bbox=box,
                   transform=panel.transAxes)  # fmt: skip


def _lowest_shown(curves: Collection[dict[str, Any]]) -> float:
    """The lower end of the axis, in percent.

    It shows the slowest of the competing rules after a third of its rounds and, in a bad seed, at
    its end. A rule that ends far behind would press the others together at the top.
    """
    best = lowest = max(curve["mean"][-1] for curve in curves)
    for curve in curves:
        means = curve["mean"]
        if means[-1] > best - COMPETES:
            halves = [half for half in curve["half"] if half is not None] or [0.0]
            lowest = min(lowest, means[-1] - halves[-1], means[len(means) // 3])
    return float(10 * max(0, floor(10 * lowest - 0.5)))
