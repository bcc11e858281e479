"""One experiment under many settings: a line per setting, a dot per rule and seed.

Under some settings a run either trains or falls to chance; a mean with an interval would hide that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.report.drawing import looks_by_label
from fedsteer.report.entries import Entry, gather, in_order, number
from fedsteer.report.formats import MISSING, bars, markdown, percent
from fedsteer.report.svg import Axis, Look, document, text

LEFT, TOP, WIDTH, LINE, LEGEND = 210, 56, 460, 30, 190


def changes_svg(runs: Iterable[Run], title: str, order: Sequence[str]) -> str:
    """Final accuracy of every rule and seed, settings from top to bottom."""
    entries = gather(runs)
    found = _accuracies(entries)
    names = _settings(found, order)
    looks = looks_by_label(entries)
    labels = sorted(looks)
    across, bottom = Axis(0, 100), TOP + LINE * len(names)
    parts = []
    for tick in across.ticks():
        x = LEFT + WIDTH * across.share(tick)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#e5e5e5"/>')
        parts.append(text(x, bottom + 18, f"{tick:g}", "middle", "#555"))
    words = "final test accuracy in %, one dot per seed"
    parts.append(text(LEFT + WIDTH / 2, bottom + 38, words, "middle", "#555"))
    for place, name in enumerate(names):
        y = TOP + LINE * (place + 0.5)
        parts.append(f'<path d="M16 {y - LINE / 2:.1f}H{LEFT + WIDTH}" stroke="#f0f0f0"/>')
        parts.append(text(LEFT - 10, y + 4, name, "end"))
        for shift, label in enumerate(labels):
            # One below the other, so that rules which are level can all be seen.
            own = y + (shift - (len(labels) - 1) / 2) * LINE * 0.8 / len(labels)
            values = found.get((name, label), [])
            for seed, accuracy in enumerate(values):
                x = LEFT + WIDTH * across.share(100 * accuracy)
                aside = (seed - (len(values) - 1) / 2) * 1.6  # equal seeds can all be seen
                parts.append(_dot(x + aside, own, looks[label]))
    right = LEFT + WIDTH + 24
    for place, label in enumerate(labels):
        y = TOP + 12 + 21 * place
        parts += [_dot(right + 6, y, looks[label]), text(right + 18, y + 4, label)]
    return document(right + LEGEND, bottom + 50, title, parts)


def changes_markdown(runs: Iterable[Run], order: Sequence[str]) -> str:
    """A row per setting, a column per rule: the mean, and every seed."""
    found = _accuracies(gather(runs))
    labels = sorted({label for _, label in found})
    lines = [bars(["setting", *map(markdown, labels)]), bars([":--", *("--:" for _ in labels)])]
    for name in _settings(found, order):
        here = [found.get((name, label), []) for label in labels]
        lines.append(bars([markdown(name), *map(_mean_and_seeds, here)]))
    return "\n".join([*lines, "", "Final accuracy in %: the mean, and in brackets every seed.", ""])


def _accuracies(entries: Iterable[Entry]) -> dict[tuple[str, str], list[float]]:
    found = {}
    for entry in entries:
        known = [number(run.result, "accuracy") for run in entry.counted]
        if values := [value for value in known if value is not None]:
            found[entry.experiment, entry.label] = values
    if not found:
        raise DataError("no run has been evaluated yet: there is nothing to draw")
    return found


def _settings(found: Iterable[tuple[str, str]], order: Sequence[str]) -> list[str]:
    return in_order({name for name, _ in found}, order)


def _mean_and_seeds(values: Sequence[float]) -> str:
    if not values:
        return MISSING
    each = ", ".join(f"{100 * value:.0f}" for value in values)
    return f"{percent(sum(values) / len(values))} ({each})"


def _dot(x: float, y: float, look: Look) -> str:
    """Hollow where the line of this rule is dashed: rules of a family share their colour."""
    fill = look.colour if look.dash == "solid" else "#ffffff"
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{fill}" stroke="{look.colour}" '
        'stroke-width="1.3"/>'
    )
