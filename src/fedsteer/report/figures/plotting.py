"""What all figures share: one look (`assets/figures.mplstyle`), one width, lines and legends."""

import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedsteer.report.styles import LIGHT, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import SubFigure as SubFigure
else:  # matplotlib is imported when a picture is drawn
    Axes = Axis = SubFigure = Any

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
Point = tuple[float, float, float]  # x, mean, half of the interval


class Figure(NamedTuple):
    """A figure: its numbers as a Markdown table, and how to draw them."""

    table: str
    height: float  # inches
    draw: Callable[[SubFigure], None]
    whole: bool = False  # the table says everything, in place of the usual one

    def svg(self, title: str) -> str:
        import matplotlib.style
        from matplotlib.figure import Figure

        look = files("fedsteer.report") / "assets" / "figures.mplstyle"
        with matplotlib.style.context(["default", str(look)]), warnings.catch_warnings():
            # A label may hold letters that matplotlib's font lacks; browsers have them.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure = Figure(figsize=(WIDTH, self.height))
            figure.suptitle(title, x=0.01, ha="left")
            body: Any = figure.subfigures()
            self.draw(body)
            file = io.StringIO()
            left_out = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure.savefig(file, format="svg", metadata={"Title": title, **left_out})
        text = file.getvalue()
        return text[text.index("<svg") :]


def draw_line(axes: Axes, points: Sequence[Point], style: Style, marker: str = "") -> None:
    """A line through the means on the band of their intervals."""
    x, mean, half = np.array(points, float).T
    colour = LIGHT[style.colour]
    axes.fill_between(x, mean - half, mean + half, color=colour, alpha=0.1, linewidth=0)
    axes.plot(x, mean, color=colour, linestyle=DASHES[style.dash], marker=marker)


def dots(style: Style) -> dict[str, Any]:
    """Dots, hollow if the rule's line is dashed: the rules of a family share their colour."""
    colour = LIGHT[style.colour]
    face = colour if style.dash == "solid" else "white"
    return {"linestyle": "", "marker": "o", "color": colour, "markerfacecolor": face,
            "markersize": 5, "markeredgewidth": 1.3}  # fmt: skip


def add_legend(
    figure: SubFigure, names: Iterable[tuple[str, Style]], title: str = "", dotted: bool = False
) -> None:
    from matplotlib.lines import Line2D

    labels, looks = zip(*names, strict=True)
    lines = [
        Line2D([], [], **dots(style))
        if dotted
        else Line2D([], [], color=LIGHT[style.colour], linestyle=DASHES[style.dash])
        for style in looks
    ]
    legend = figure.legend(lines, labels, loc="outside right upper", title=title, alignment="left")
    legend.get_title().set_color(MUTED)


def set_log_ticks(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis: 1, 2, 5, 10, or 1, 10, 100 over many decades."""
    from matplotlib.ticker import LogLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 1000 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")
