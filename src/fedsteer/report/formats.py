"""The table as Markdown, CSV and text for the terminal.

Labels come from records and may hold anything: each form escapes what would break it.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from fedsteer.errors import unknown
from fedsteer.report.statistics import Estimate
from fedsteer.report.tables import Row, Summary

MISSING = "-"
COSTS = ("memory", "warm-up rounds")
"""Headings that are left out late where there is little room: where accuracies are alike, these
often differ."""


@dataclass(frozen=True)
class Column:
    """One column of the table for people: heading, meaning, and a cell's text and number."""

    heading: str
    meaning: str
    text: Callable[[Row], str]
    value: Callable[[Row], float | str | None]  # what to sort by
    words: bool = False  # left-aligned


def columns(summary: Summary) -> list[Column]:
    """The columns that have something to show, most important first."""
    found = [Column("rule", "the server rule", _name, lambda row: row.label, words=True)]
    if len(summary.experiments) > 1:
        found.insert(0, Column("experiment", "", _experiment, _experiment, words=True))
    found.append(_estimated("accuracy %", "final test accuracy", lambda row: row.accuracy, percent))
    if summary.baseline is not None:
        heading = f"vs {summary.baseline}"
        meaning = f"difference to {summary.baseline} in points, paired by seed"
        found.append(_estimated(heading, meaning, lambda row: row.difference, points))
    meaning = "mean test accuracy over the last third of the rounds"
    found.append(_estimated("last third %", meaning, lambda row: row.late, percent))
    if summary.baseline is not None:
        meaning = f"its difference to {summary.baseline}, paired by seed"
        late = f"last third {heading}"
        found.append(_estimated(late, meaning, lambda row: row.late_difference, points))
    for group in summary.groups:
        found.append(_group(group))
    found += [
        _estimated("client spread", "standard deviation of accuracy over clients, in points",
                   lambda row: row.clients_std, percent),
        _estimated("worst tenth", "accuracy that nine in ten clients exceed",
                   lambda row: row.clients_p10, percent),
        _plain("memory", "peak memory of the server rule", lambda row: row.server_bytes, size),
        _plain("sent up", "bytes from clients to server", lambda row: row.bytes_up, size),
        _plain("sent down", "bytes from server to clients", lambda row: row.bytes_down, size),
        _plain("warm-up rounds", "rounds before training begins",
               lambda row: row.warm_up_rounds, count),
        _plain("warm-up uploads", "updates sent before training begins",
               lambda row: row.warm_up_uploads, count),
        _plain("time", "wall time of a run", lambda row: row.seconds, duration),
    ]  # fmt: skip
    found.append(Column("seeds", "finished runs", _seeds, lambda row: float(len(row.seeds))))
    return [
        column
        for column in found
        if column.words or any(column.text(row) != MISSING for row in summary.rows)
    ]


def to_markdown(summary: Summary, only: Sequence[str] | None = None) -> str:
    """A Markdown table and a line that says what ± means.

    only   headings of the columns that are wanted, in this order; default: all
    """
    shown = columns(summary)
    if only is not None:
        by_heading = {column.heading: column for column in shown}
        for heading in only:
            if heading not in by_heading:
                raise unknown("column", heading, by_heading)
        shown = [by_heading[heading] for heading in only]
    headings = [column.heading for column in shown]
    rows = [[column.text(row) for column in shown] for row in summary.rows]
    words = [column.heading for column in shown if column.words]
    return f"{table(headings, rows, words)}\n{markdown(note(summary))}\n"


def to_csv(summary: Summary) -> str:
    """Every number at full length, one row per rule; see `Summary.records` for the columns."""
    records = summary.records()
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({key: _number(value) for key, value in record.items()})
    return file.getvalue()


def to_text(summary: Summary, width: int | None = None) -> str:
    """Aligned columns for a terminal; those that do not fit in `width` characters are named."""
    shown = columns(summary)
    texts = [
        [_printable(column.heading), *(_printable(column.text(row)) for row in summary.rows)]
        for column in shown
    ]
    widths = [max(map(len, cells)) for cells in texts]
    kept = list(range(len(shown)))
    first = sum(column.words for column in shown) + 1  # names, and the accuracy
    spare = [*kept[first:-1]]  # the number of seeds stays: an accuracy without it says little
    spare.sort(key=lambda i: (i != first, shown[i].heading not in COSTS, i))
    while width is not None and sum(widths[i] + 2 for i in kept) - 2 > width and spare:
        kept.remove(spare.pop())
    lines = []
    for line in range(len(summary.rows) + 1):
        cells = [
            texts[i][line].ljust(widths[i]) if shown[i].words else texts[i][line].rjust(widths[i])
            for i in kept
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * widths[i] for i in kept))
    words = note(summary)
    if len(kept) < len(shown):
        missing = (shown[i].heading for i in range(len(shown)) if i not in kept)
        words += f" No room here for {', '.join(missing)}."
    below = textwrap.wrap(_printable(words), width or 100)
    return "\n".join([*lines, "", *below]) + "\n"


SHOWN = 3
"""Runs that failed, named one by one; `failure.json` in a run's folder has the reason."""


def note(summary: Summary) -> str:
    """What the numbers mean, in one line."""
    parts = ["Means over seeds; ± is the 95 % interval (Student's t)."]
    if any(row.difference or row.late_difference for row in summary.rows):
        parts.append(f"Differences to {summary.baseline} are in points, paired by seed.")
    left_out = sum(row.unfinished for row in summary.rows)
    if left_out:
        plural = "run is" if left_out == 1 else "runs are"
        parts.append(f"{left_out} unfinished {plural} not counted.")
    failed = [
        f"{row.label}, {textwrap.shorten(why, 100, placeholder=' ...')}"
        for row in summary.rows
        for why in row.failures
    ]
    if failed:
        more = f"; and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
        parts.append(f"Could not go on: {'; '.join(failed[:SHOWN])}{more}.")
    return " ".join(parts)


def percent(value: float) -> str:
    """A share as percent."""
    return f"{100 * value:.1f}"


def points(value: float) -> str:
    """A difference of shares in points, with its sign."""
    return f"{100 * value:+.1f}"


def hundredths(value: float) -> str:
    """A number with two digits."""
    return f"{value:.2f}"


def with_half(
    found: Estimate | None, form: Callable[[float], str], half: Callable[[float], str] = percent
) -> str:
    """The mean in that form and half of its interval, by default in points."""
    if found is None:
        return MISSING
    return form(found.mean) + ("" if found.half is None else f" ± {half(found.half)}")


def alone(found: Estimate | None, form: Callable[[float], str]) -> str:
    """The mean in that form."""
    return MISSING if found is None else form(found.mean)


def size(value: float) -> str:
    """Bytes, in decimal units."""
    if value < 999.5:
        return f"{value:.0f} B"
    units = ["kB", "MB", "GB", "TB"]
    value /= 1000
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {units[0]}"


def count(value: float) -> str:
    """A count; a mean over seeds may have a fraction."""
    return f"{value:.0f}" if value == round(value) or value >= 100 else f"{value:.1f}"


def duration(value: float) -> str:
    """Seconds, minutes or hours."""
    unit = "s"
    if value >= 90:
        value, unit = value / 60, "min"
        if value >= 90:
            value, unit = value / 60, "h"
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def _estimated(
    heading: str,
    meaning: str,
    pick: Callable[[Row], Estimate | None],
    form: Callable[[float], str],
) -> Column:
    return Column(
        heading, meaning, lambda row: with_half(pick(row), form), lambda row: _mean(pick(row))
    )


def _plain(
    heading: str,
    meaning: str,
    pick: Callable[[Row], Estimate | None],
    form: Callable[[float], str],
) -> Column:
    return Column(
        heading, meaning, lambda row: alone(pick(row), form), lambda row: _mean(pick(row))
    )


def _group(name: str) -> Column:
    return _estimated(
        f"{name} %", f"accuracy on the {name} labels", lambda row: row.groups.get(name), percent
    )


def _mean(found: Estimate | None) -> float | None:
    return None if found is None else found.mean


def _name(row: Row) -> str:
    return row.label


def _experiment(row: Row) -> str:
    return row.experiment


def _seeds(row: Row) -> str:
    return str(len(row.seeds))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[str]) -> str:
    """A Markdown table. The columns of these headings hold words, the others numbers."""
    ruler = [":--" if heading in words else "--:" for heading in headings]
    escaped = [[markdown(cell) for cell in row] for row in (headings, *rows)]
    lines = [escaped[0], ruler, *escaped[1:]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def markdown(text: str) -> str:
    """Text that stays text in Markdown."""
    text = " ".join(_printable(text).split())
    for old, new in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|")):
        text = text.replace(old, new)
    return text


def _printable(text: str) -> str:
    """No control characters: a label must not steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def _number(value: object) -> object:
    return float(f"{value:.9g}") if isinstance(value, float) else value
