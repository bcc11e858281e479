"""One picture for a README or a paper: accuracy over rounds as a plain SVG file.

The same records give the same bytes, so a committed picture can be checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.report.curves import accuracy_curve
from fedsteer.report.entries import gather, names_of
from fedsteer.report.styles import styles

COLOURS = ("#d55e00", "#333333", "#0072b2", "#009e73", "#e69f00", "#cc79a7", "#56b4e9")
DASHES = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 4"}
WIDTH, HEIGHT = 900, 430
LEFT, RIGHT, TOP, BOTTOM = 56, 240, 44, 46  # margins; the legend stands on the right


def to_svg(runs: Iterable[Run], title: str) -> str:
    """Mean accuracy of every rule over the training rounds, with 95 % intervals over seeds."""
    entries = gather(runs)
    curves = [accuracy_curve(entry.shown) for entry in entries]
    looks = styles(entries)
    known = [i for i, curve in enumerate(curves) if curve is not None]
    if not known:
        raise DataError("no run has been evaluated yet: there is nothing to draw")
    known.sort(key=lambda i: -(_last(curves[i]) or 0.0))
    last = max(curves[i]["train"][-1] for i in known)  # type: ignore[index]
    parts = [_frame(title, last)]
    for i in reversed(known):
        parts.append(_curve(curves[i], looks[i], last))  # type: ignore[arg-type]
    names = names_of(entries)
    for place, i in enumerate(known):
        parts.append(_legend(place, names[i], looks[i], _last(curves[i])))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="13">'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _x(moment: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * moment / max(last, 1)


def _y(accuracy: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(accuracy, 0.0), 1.0))


def _frame(title: str, last: int) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    lines = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="600" fill="#222">'
        f"{escape(title)}</text>",
    ]
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        lines.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#e5e5e5"/>')
        lines.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">'
            f"{tenth * 10}</text>"
        )
    for part in range(6):
        moment = round(last * part / 5)
        lines.append(
            f'<text x="{_x(moment, last):.1f}" y="{bottom + 19}" text-anchor="middle" '
            f'fill="#555">{moment}</text>'
        )
    middle = (LEFT + right) / 2
    lines.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle" fill="#555">'
        "training rounds; test accuracy in %</text>"
    )
    return "\n".join(lines)


def _curve(curve: dict[str, Any], look: dict[str, Any], last: int) -> str:
    colour = COLOURS[int(look["colour"])]
    points = [
        (_x(moment, last), mean, half or 0.0)
        for moment, mean, half in zip(curve["train"], curve["mean"], curve["half"], strict=True)
        if mean is not None
    ]
    upper = [f"{x:.1f} {_y(mean + half):.1f}" for x, mean, half in points]
    lower = [f"{x:.1f} {_y(mean - half):.1f}" for x, mean, half in reversed(points)]
    line = "L".join(f"{x:.1f} {_y(mean):.1f}" for x, mean, _ in points)
    dash = DASHES[str(look["dash"])]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path d="M{"L".join(upper + lower)}Z" fill="{colour}" fill-opacity="0.10"/>\n'
        f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
    )


def _legend(place: int, name: str, look: dict[str, Any], value: float | None) -> str:
    x, y = WIDTH - RIGHT + 18, TOP + 10 + 21 * place
    dash = DASHES[str(look["dash"])]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    shown = "" if value is None else f"{100 * value:.1f}"
    colour = COLOURS[int(look["colour"])]
    return (
        f'<path d="M{x} {y}h26" stroke="{colour}" stroke-width="2.5"{dashes}/>'
        f'<text x="{x + 34}" y="{y + 4}" fill="#222">{escape(name)}</text>'
        f'<text x="{WIDTH - 8}" y="{y + 4}" text-anchor="end" fill="#222">{shown}</text>'
    )


def _last(curve: dict[str, Any] | None) -> float | None:
    values: Sequence[float | None] = () if curve is None else curve["mean"]
    return next((value for value in reversed(values) if value is not None), None)
