"""Small multiples with logarithmic axes as a plain SVG, for light and dark pages.

The same measurements give the same bytes, so a committed picture can be checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

from costs.panels import FEDVARP, Shown, shown
from costs.scaling_table import in_units, in_words

ACROSS = 3
WIDTH, HEIGHT = 310, 250  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 52, 40  # margins of a panel
LEGEND = 34
STYLE = """<style>
svg { --paper: #ffffff; --ink: #222222; --faint: #666666; --grid: #e4e4e4; --ours: #d55e00;
  --other: #0072b2; }
@media (prefers-color-scheme: dark) { svg { --paper: #0d1117; --ink: #e6edf3; --faint: #9aa4af;
  --grid: #2b323b; --ours: #ff8a3d; --other: #58b4f0; } }
text { fill: var(--faint); }
.title { fill: var(--ink); font-weight: 600; font-size: 13px; }
.slope { fill: var(--ours); }
.paper { fill: var(--paper); }
.grid { stroke: var(--grid); }
.fit { stroke: var(--ours); stroke-width: 1.8; fill: none; }
.point { fill: var(--ours); }
.claim { stroke: var(--faint); stroke-width: 1.4; stroke-dasharray: 5 4; fill: none; }
.other { stroke: var(--other); stroke-width: 1.6; stroke-dasharray: 2 3; fill: none; }
</style>"""


def to_svg(measured: dict[str, Any]) -> str:
    """Every panel: points, the fitted line with its slope, what the paper claims."""
    entries = shown(measured)
    rows = ceil(len(entries) / ACROSS)
    width, height = ACROSS * WIDTH, rows * HEIGHT + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="11">',
        STYLE,
        f'<rect class="paper" width="{width}" height="{height}"/>',
        _legend(),
    ]
    for place, entry in enumerate(entries):
        x, y = WIDTH * (place % ACROSS), LEGEND + HEIGHT * (place // ACROSS)
        parts.append(f'<g transform="translate({x} {y})">\n{_panel(entry)}\n</g>')
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> str:
    words = (
        ("fit", "slope fitted to the larger sizes, ± 95 %"),
        ("claim", "paper's count, through the last point"),
        ("other", f"{FEDVARP}, computed"),
    )
    parts, x = [], LEFT
    for name, text in words:
        parts.append(
            f'<path class="{name}" d="M{x} 20h26"/><text x="{x + 32}" y="24">{text}</text>'
        )
        x += 60 + 6 * len(text)
    return "\n".join(parts)


class _Scale:
    """Logarithms of one axis onto pixels; whole decades at both ends if these are few."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        low, high = log10(min(values)), log10(max(values))
        room = 0.04 * max(high - low, 1.0)
        self.low, self.high = low - room, high + room
        if self.high - self.low < 1:  # a flat line is to look flat
            middle = (self.low + self.high) / 2
            self.low, self.high = middle - 0.75, middle + 0.75
        self.first, self.last = first, last

    def __call__(self, value: float) -> float:
        share = (log10(value) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)

    def ticks(self, most: int) -> list[float]:
        """Powers of ten; with multiples in between if they are too few."""
        decades = range(floor(self.low), ceil(self.high) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [s * 10.0**p for p in decades for s in steps]
            found = [value for value in found if self.low <= log10(value) <= self.high]
            if len(found) <= most:
                return found
        return found[:: ceil(len(found) / most)]


def _panel(entry: Shown) -> str:
    panel, sizes, values = entry.panel, entry.sizes, entry.values
    computed = {name: [line(size) for size in sizes] for name, line in entry.lines.items()}
    x = _Scale(sizes, LEFT, WIDTH - RIGHT)
    every = [*values, *(value for line in computed.values() for value in line)]
    y = _Scale(every, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<text class="title" x="{LEFT}" y="18">{escape(panel.title)}</text>',
        f'<text x="{LEFT}" y="34"><tspan class="slope">slope {in_words(entry.upper)}</tspan>'
        f"{_claim_words(entry)}</text>",
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{panel.size}</text>",
    ]
    for value in y.ticks(5):
        parts.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>')
        label = in_units(value, panel.quantity)
        parts.append(
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{label}</text>'
        )
    for value in x.ticks(6):
        label = f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">'
        parts.append(f"{label}{_short(value)}</text>")
    for name, line in computed.items():
        parts.append(_path("other" if name == FEDVARP else "claim", x, y, sizes, line))
    if panel.exponent is not None:
        claimed = [values[-1] * (size / sizes[-1]) ** panel.exponent for size in sizes]
        inside = [(s, c) for s, c in zip(sizes, claimed, strict=True) if log10(c) >= y.low]
        parts.append(_path("claim", x, y, *zip(*inside, strict=True)))
    ends = (entry.upper_from, sizes[-1])
    parts.append(_path("fit", x, y, ends, [entry.upper.at(size) for size in ends]))
    for size, value in zip(sizes, values, strict=True):
        parts.append(f'<circle class="point" cx="{x(size):.1f}" cy="{y(value):.1f}" r="3"/>')
    return "\n".join(parts)


def _claim_words(entry: Shown) -> str:
    exponent = entry.panel.exponent
    return "" if exponent is None else f"; paper {exponent:g}"


def _path(name: str, x: _Scale, y: _Scale, sizes: Sequence[float], values: Sequence[float]) -> str:
    points = "L".join(f"{x(s):.1f} {y(v):.1f}" for s, v in zip(sizes, values, strict=True))
    return f'<path class="{name}" d="M{points}"/>'


def _short(value: float) -> str:
    for one, name in ((1e6, "M"), (1e3, "k")):
        if value >= one:
            return f"{value / one:g}{name}"
    return f"{value:g}"
