"""What all figures share: one look, one width, and SVG of the same bytes for the same records.

Text stays text in the SVG, so it can be searched and read aloud. The ground is white, so that the
figures can be read on GitHub's dark pages too.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fedsteer.report.styles import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import SubFigure

WIDTH = 9.0  # inches, 864 pixels: about what a README is shown at
LEGEND_LINE = 0.21  # inches
MARGIN = 0.7  # inches, for the title and the labels of the x axis
INK, MUTED, GRID = "#1d1f22", "#555555", "#e5e5e5"
DASHES = {
    "solid": (0, ()),
    "dash": (0, (3.5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (3.5, 1.5, 1, 1.5)),
    "longdash": (0, (6, 2)),
}
STYLE = {
    "figure.constrained_layout.h_pad": 0.07,  # inches
    "figure.constrained_layout.w_pad": 0.07,
    "axes.axisbelow": True,
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # alike, and one of them is on most machines
    "grid.color": GRID,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "lines.linewidth": 1.7,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedsteer",
    "text.color": INK,
    "text.parse_math": False,  # a label from records may hold dollar signs
    "xtick.color": MUTED,
    "xtick.major.pad": 6,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.color": MUTED,
    "ytick.major.pad": 6,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}


def to_svg_text(title: str, height: float, draw: Callable[[SubFigure], None]) -> str:
    """SVG of what `draw` puts below the title."""
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        # A label may hold letters that matplotlib's font lacks; browsers have them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", size=11, weight="bold")
        body: Any = figure.subfigures()
        draw(body)
        file = io.StringIO()
        metadata = {"Title": title, "Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(file, format="svg", metadata=metadata)
    text = file.getvalue()
    return text[text.index("<svg") :]


def colour_of(style: Style) -> str:
    """Its colour on white."""
    return LIGHT[style.colour]


def draw_line(
    axes: Axes,
    x: Sequence[float],
    mean: Sequence[float],
    half: Sequence[float],
    style: Style,
    marker: str = "",
) -> None:
    """A line through the means on the band of their intervals."""
    lower = [m - h for m, h in zip(mean, half, strict=True)]
    upper = [m + h for m, h in zip(mean, half, strict=True)]
    axes.fill_between(x, lower, upper, color=colour_of(style), alpha=0.1, linewidth=0)
    axes.plot(x, mean, color=colour_of(style), linestyle=DASHES[style.dash], marker=marker)


def draw_dots(axes: Axes, points: Iterable[tuple[float, float]], style: Style) -> None:
    """Dots, hollow if the rule's line is dashed: the rules of a family share their colour."""
    x, y = zip(*points, strict=True)
    axes.plot(x, y, clip_on=False, **_dot(style))


def add_legend(
    figure: SubFigure, names: Iterable[tuple[str, Style]], title: str = "", dots: bool = False
) -> None:
    """Names to the right of the panels."""
    from matplotlib.lines import Line2D

    rows = list(names)
    lines = [
        Line2D([], [], **_dot(style))
        if dots
        else Line2D([], [], color=colour_of(style), linestyle=DASHES[style.dash])
        for _, style in rows
    ]
    labels = [name for name, _ in rows]
    legend = figure.legend(lines, labels, loc="outside right upper", title=title, alignment="left")
    legend.get_title().set(color=MUTED, size=10)


def _dot(style: Style) -> dict[str, Any]:
    colour = colour_of(style)
    face = colour if style.dash == "solid" else "white"
    return {"linestyle": "", "marker": "o", "color": colour, "markerfacecolor": face,
            "markersize": 5, "markeredgewidth": 1.3}  # fmt: skip


def set_ticks(axis: Axis) -> None:
    """A few round numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))


def set_log_ticks(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis: 1, 2, 5, 10, or 1, 10, 100 over many decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 1000 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
