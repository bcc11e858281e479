"""The little SVG our pictures need: axes, panels with lines and bands, a legend.

Numbers are written with one digit behind the point, so the same records give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

COLOURS = ("#d55e00", "#333333", "#0072b2", "#009e73", "#e69f00", "#cc79a7", "#56b4e9")
DASHES = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 4"}
TICKS = 5
LINE = 21  # height of a line of the legend
MARGIN = 4  # around a panel, for lines and dots that lie on its edge

Point = tuple[float, float, float]
"""x, mean, half of the interval."""


@dataclass(frozen=True)
class Look:
    """How a line is drawn."""

    colour: str
    dash: str = "solid"

    @property
    def stroke(self) -> str:
        """Attributes of a path."""
        dashes = f' stroke-dasharray="{DASHES[self.dash]}"' if DASHES[self.dash] else ""
        return f'stroke="{self.colour}"{dashes}'


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies: from 0 to 1, and beyond for what is outside."""
        low, high, at = self.low, self.high, value
        if self.log:  # far enough below the axis for what has no logarithm
            low, high, at = log10(low), log10(high), log10(max(value, low / 100))
        return (at - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[float]:
        """Round numbers on the axis."""
        if self.log:
            powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
            few = len(powers) > 3
            steps = [m * 10.0**p for p in powers for m in ((1,) if few else (1, 2, 5))]
            return [tick for tick in steps if self.low <= tick <= self.high]
        wanted = (self.high - self.low) / TICKS or 1.0
        power = 10.0 ** floor(log10(wanted))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= wanted * 0.999)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [tick * step for tick in range(first, last + 1)]


@dataclass(frozen=True)
class Panel:
    """A plot at a place of the picture."""

    left: float
    top: float
    width: float
    height: float
    x: Axis
    y: Axis

    def frame(self, title: str, x_label: str) -> str:
        """Title above, grid and numbers, the label of the x axis below."""
        right, bottom = self.left + self.width, self.top + self.height
        parts = [text(self.left, self.top - 9, title, weight=600)] if title else []
        for tick in self.y.ticks():
            y = self._y(tick)
            parts.append(f'<path d="M{self.left:.1f} {y:.1f}H{right:.1f}" stroke="#e5e5e5"/>')
            parts.append(text(self.left - 8, y + 4, f"{tick:g}", "end", "#555"))
        for tick in self.x.ticks():
            parts.append(text(self._x(tick), bottom + 19, f"{tick:g}", "middle", "#555"))
        middle = self.left + self.width / 2
        return "\n".join([*parts, text(middle, bottom + 38, x_label, "middle", "#555")])

    def line(self, points: Sequence[Point], look: Look, dots: bool = False) -> str:
        """A line through the means on the band of their intervals; what is outside is cut off."""
        upper = [f"{self._x(x):.1f} {self._y(mean + half):.1f}" for x, mean, half in points]
        lower = [f"{self._x(x):.1f} {self._y(mean - half):.1f}" for x, mean, half in points[::-1]]
        middle = [(self._x(x), self._y(mean)) for x, mean, _ in points]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in middle)
        left, top = self.left - MARGIN, self.top - MARGIN
        width, height = self.width + 2 * MARGIN, self.height + 2 * MARGIN
        parts = [
            f'<svg x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'viewBox="{left:.1f} {top:.1f} {width:.1f} {height:.1f}">',
            f'<path d="M{"L".join(upper + lower)}Z" fill="{look.colour}" fill-opacity="0.10"/>',
            f'<path d="M{line}" fill="none" {look.stroke} stroke-width="2"/>',
        ]
        if dots:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{look.colour}"/>' for x, y in middle
            ]
        return "\n".join([*parts, "</svg>"])

    def _x(self, value: float) -> float:
        return self.left + self.width * self.x.share(value)

    def _y(self, value: float) -> float:
        return self.top + self.height * (1 - self.y.share(value))


def text(
    x: float,
    y: float,
    words: str,
    anchor: str = "start",
    colour: str = "#222",
    size: int = 13,
    weight: int = 400,
) -> str:
    """Words at a place."""
    bold = f' font-weight="{weight}"' if weight != 400 else ""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{place} fill="{colour}"{bold}>'
        f"{escape(words)}</text>"
    )


def legend(
    left: float, top: float, right: float, rows: Iterable[tuple[str, Look, str]]
) -> list[str]:
    """Line, name and value of each, one below the other."""
    parts = []
    for place, (name, look, value) in enumerate(rows):
        y = top + LINE * place
        parts.append(f'<path d="M{left:.1f} {y:.1f}h26" {look.stroke} stroke-width="2.5"/>')
        parts.append(text(left + 34, y + 4, name))
        if value:
            parts.append(text(right, y + 4, value, "end"))
    return parts


def document(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """The whole picture on a white ground, the title above."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="system-ui, sans-serif" '
        'font-size="13">'
    )
    ground = f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'
    return "\n".join([head, ground, text(16, 24, title, size=15, weight=600), *parts, "</svg>", ""])
