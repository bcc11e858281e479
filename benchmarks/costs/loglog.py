"""Small multiples with logarithmic axes, drawn like the figures of the report."""

from __future__ import annotations

from itertools import zip_longest
from math import ceil
from typing import TYPE_CHECKING, Any

from costs.panels import FEDVARP, Shown, shown
from costs.scaling_table import in_words
from fedsteer.report.figures.plotting import MARGIN, MUTED, Figure, set_log_ticks
from fedsteer.report.styles import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

ACROSS = 3
HEIGHT = 2.4  # inches of a panel
LEAST = 1.5  # decades that an axis spans at least: a flat line is to look flat
FITTED = {"color": LIGHT[0]}
CLAIMED = {"color": MUTED, "linestyle": "--", "linewidth": 1.3}
OTHER = {"color": LIGHT[2], "linestyle": ":"}
LEGEND = {
    "slope fitted to the larger sizes, ± 95 %": FITTED,
    "paper's count, through the last point": CLAIMED,
    f"{FEDVARP}, computed": OTHER,
}


def to_svg(measured: dict[str, Any]) -> str:
    """Every panel: points, the fitted line with its slope, what the paper claims.

    The same measurements give the same bytes, so a committed picture can be checked.
    """
    entries = shown(measured)
    rows = ceil(len(entries) / ACROSS)

    def draw(figure: SubFigure) -> None:
        from matplotlib.lines import Line2D

        panels = figure.subplots(rows, ACROSS, squeeze=False).flat
        for axes, entry in zip_longest(panels, entries):
            if entry is None:
                axes.remove()
            else:
                _draw_panel(axes, entry)
        lines = [Line2D([], [], **look) for look in LEGEND.values()]
        figure.legend(lines, LEGEND, loc="outside upper left", ncols=len(lines))

    height = 2 * MARGIN + HEIGHT * rows
    return Figure(table="", height=height, draw=draw).svg("How cost grows")


def _draw_panel(axes: Axes, entry: Shown) -> None:
    from matplotlib.ticker import EngFormatter

    panel, sizes, values = entry.panel, entry.sizes, entry.values
    for name, line in entry.lines.items():
        axes.plot(sizes, [line(size) for size in sizes], **(OTHER if name == FEDVARP else CLAIMED))
    ends = (entry.upper_from, sizes[-1])
    axes.plot(ends, [entry.upper.at(size) for size in ends], **FITTED)
    axes.plot(sizes, values, linestyle="", marker="o", markersize=4.5, **FITTED)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 10**LEAST * low:
        middle, reach = (low * high) ** 0.5, 10 ** (LEAST / 2)
        low, high = middle / reach, middle * reach
    axes.set_ylim(low, high)
    slope = f"slope {in_words(entry.upper)}"
    if panel.exponent is not None:
        claimed = [values[-1] * (size / sizes[-1]) ** panel.exponent for size in sizes]
        axes.plot(sizes, claimed, **CLAIMED)  # may leave the panel below
        slope += f"; paper {panel.exponent:g}"
    axes.set_title(panel.title, pad=18)
    axes.annotate(slope, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points",
                  color=LIGHT[0], size=9)  # fmt: skip
    axes.set_xlabel(panel.size)
    set_log_ticks(axes.xaxis)
    set_log_ticks(axes.yaxis)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(EngFormatter("s" if panel.quantity == "seconds" else "B"))
