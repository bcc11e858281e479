"""One experiment under many settings: a line per setting, a dot per rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.report.drawing import looks_by_label
from fedsteer.report.entries import Entry, gather, number
from fedsteer.report.formats import bars, percent, with_half
from fedsteer.report.statistics import Estimate, estimate
from fedsteer.report.svg import Axis, document, legend, text

LEFT, TOP, WIDTH, LINE, LEGEND = 210, 56, 460, 26, 190


def changes_svg(runs: Iterable[Run], title: str, order: Sequence[str]) -> str:
    """Final accuracy of every rule with its 95 % interval, settings from top to bottom."""
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
    parts.append(text(LEFT + WIDTH / 2, bottom + 38, "final test accuracy in %", "middle", "#555"))
    for place, name in enumerate(names):
        y = TOP + LINE * (place + 0.5)
        parts.append(text(LEFT - 10, y + 4, name, "end"))
        for shift, label in enumerate(labels):
            if (here := found.get((name, label))) is None:
                continue
            # One below the other, so that rules which are level can all be seen.
            own = y + (shift - (len(labels) - 1) / 2) * LINE * 0.7 / len(labels)
            middle, half = 100 * here.mean, 100 * (here.half or 0.0)
            low, at, high = (
                LEFT + WIDTH * across.share(v) for v in (middle - half, middle, middle + half)
            )
            colour = looks[label].colour
            parts.append(f'<path d="M{low:.1f} {own:.1f}H{high:.1f}" stroke="{colour}"/>')
            parts.append(f'<circle cx="{at:.1f}" cy="{own:.1f}" r="3.5" fill="{colour}"/>')
    right = LEFT + WIDTH + 24
    parts += legend(
        right, TOP + 12, right + LEGEND, [(label, looks[label], "") for label in labels]
    )
    return document(right + LEGEND, bottom + 50, title, parts)


def changes_markdown(runs: Iterable[Run], order: Sequence[str]) -> str:
    """A row per setting, a column per rule."""
    found = _accuracies(gather(runs))
    labels = sorted({label for _, label in found})
    lines = [bars(["setting", *labels]), bars([":--", *("--:" for _ in labels)])]
    for name in _settings(found, order):
        here = [found.get((name, label)) for label in labels]
        lines.append(bars([name, *(with_half(one, percent) for one in here)]))
    return "\n".join(lines) + "\n"


def _accuracies(entries: Iterable[Entry]) -> dict[tuple[str, str], Estimate]:
    found = {}
    for entry in entries:
        accuracy = estimate(number(run.result, "accuracy") for run in entry.counted)
        if accuracy is not None:
            found[entry.experiment, entry.label] = accuracy
    if not found:
        raise DataError("no run has been evaluated yet: there is nothing to draw")
    return found


def _settings(found: Iterable[tuple[str, str]], order: Sequence[str]) -> list[str]:
    known = {name for name, _ in found}
    return [name for name in order if name in known] + sorted(known - set(order))
