"""The table as Markdown, CSV and text for the terminal.

Labels come from records and may hold anything: each form escapes what would break it.
"""

import csv
import io
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedsteer.errors import check_name, printable
from fedsteer.records.files import plain
from fedsteer.report.entries import Entry
from fedsteer.report.statistics import Estimate
from fedsteer.report.summary import Summary

MISSING = "-"
SHOWN = 3  # failed runs that are named one by one
ESCAPED = str.maketrans({"\\": "\\\\", "&": "&amp;", "<": "&lt;", "|": "\\|"})
Form = Callable[[float], str]


@dataclass(frozen=True)
class Column:
    """One column of a table for people. Without a form it holds words."""

    heading: str
    meaning: str = ""
    key: str = ""  # one of the row's estimates, or an attribute of it
    form: Form | None = None  # accuracies are shown with their interval

    @property
    def words(self) -> bool:
        return self.form is None

    def text(self, row: Entry) -> str:
        value = self.value(row)
        if value is None or self.form is None:
            return MISSING if value is None else str(value)
        if self.form in (percent, points):
            return with_half(row.estimates[self.key], self.form)
        return self.form(value)

    def value(self, row: Entry) -> Any:
        """The sort key: words, a number, or None if it is unknown."""
        if self.key not in row.estimates:
            return getattr(row, self.key)
        found = row.estimates[self.key]
        return None if found is None else found.mean


def columns(summary: Summary) -> list[Column]:
    """The columns that have something to show, most important first."""
    base, paired = f"vs {summary.baseline}", f"difference to {summary.baseline}"
    found = [
        Column("experiment", key="experiment"),
        Column("rule", "the server rule", "label"),
        Column("accuracy %", "final test accuracy", "accuracy", percent),
        Column(base, f"{paired} in points, paired by seed", "difference", points),
        Column("last third %", "mean test accuracy over the last third of the rounds", "late",
               percent),
        Column(f"last third {base}", f"its {paired}, paired by seed", "late_difference", points),
        Column("averaged %", "the last third of the averaged model", "average", percent),
        *(Column(f"{name} %", f"accuracy on the {name} labels", f"accuracy_{name}", percent)
          for name in summary.groups),
        Column("client spread", "standard deviation of accuracy over clients, in points",
               "clients_std", percent),
        Column("worst tenth", "accuracy that nine in ten clients exceed", "clients_p10", percent),
        Column("epsilon", "of the client whose privacy it cost most", "epsilon", "{:.3g}".format),
        Column("memory", "peak memory of the server rule", "server_bytes", size),
        Column("sent up", "bytes from clients to server", "bytes_up", size),
        Column("sent down", "bytes from server to clients", "bytes_down", size),
        Column("warm-up rounds", "rounds before training begins", "warm_up_rounds", count),
        Column("warm-up uploads", "updates sent before training begins", "warm_up_uploads", count),
        Column("time", "wall time of a run", "seconds", duration),
        Column("seeds", "finished runs", "finished", count),
    ]  # fmt: skip
    if len(summary.experiments) == 1:
        del found[0]
    return [
        column
        for column in found
        if column.words or any(column.value(row) is not None for row in summary.rows)
    ]


def to_markdown(summary: Summary, only: Sequence[str] | None = None) -> str:
    """A Markdown table and a line that says what ± means.

    only   headings of the columns that are wanted, in this order; default: all
    """
    shown = columns(summary)
    if only is not None:
        by_heading = {column.heading: column for column in shown}
        for heading in only:
            check_name("column", heading, by_heading)
        shown = [by_heading[heading] for heading in only]
    headings = [column.heading for column in shown]
    rows = [[column.text(row) for column in shown] for row in summary.rows]
    words = [column.heading for column in shown if column.words]
    return f"{table(headings, rows, words)}\n{markdown(note(summary))}\n"


def to_csv(summary: Summary) -> str:
    """Every number with nine digits, one row per rule; see `Summary.records` for the columns."""
    records = plain(summary.records())
    file = io.StringIO()
    writer = csv.DictWriter(file, records[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue()


def to_text(summary: Summary, width: int | None = None) -> str:
    """Aligned columns for a terminal; those that do not fit in `width` characters are named."""
    shown = columns(summary)
    blocks = []  # the lines of every column, all of the same width
    for column in shown:
        texts = [column.heading, *(column.text(row) for row in summary.rows)]
        cells = [printable(text) for text in texts]
        wide = max(map(len, cells))
        cells = [cell.ljust(wide) if column.words else cell.rjust(wide) for cell in cells]
        blocks.append([cells[0], "-" * wide, *cells[1:]])
    kept = list(range(len(shown)))
    first = sum(column.words for column in shown) + 1  # names, and the accuracy
    spare = kept[first:-1]  # the number of seeds stays: an accuracy without it says little
    longest = ("memory", "warm-up rounds")  # they often tell equal rules apart
    spare.sort(key=lambda i: (i != first, shown[i].heading not in longest, i))
    while width is not None and sum(len(blocks[i][0]) + 2 for i in kept) - 2 > width and spare:
        kept.remove(spare.pop())
    lines = ["  ".join(line).rstrip() for line in zip(*(blocks[i] for i in kept), strict=True)]
    words = note(summary)
    if missing := [column.heading for i, column in enumerate(shown) if i not in kept]:
        words += f" No room here for {', '.join(missing)}."
    below = textwrap.wrap(printable(words), width or 100)
    return "\n".join([*lines, "", *below]) + "\n"


def note(summary: Summary) -> str:
    parts = ["Means over seeds; ± is the 95 % interval (Student's t)."]
    if any(row.estimates["difference"] or row.estimates["late_difference"] for row in summary.rows):
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
        parts.append(f"Failed: {'; '.join(failed[:SHOWN])}{more}.")
    return " ".join(parts)


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def points(value: float) -> str:
    """A difference of shares in points, with its sign."""
    return f"{100 * value:+.1f}"


hundredths: Form = "{:.2f}".format


def with_half(found: Estimate | None, form: Form, half: Form = percent) -> str:
    """The mean in that form and half of its interval, by default in points."""
    if found is None:
        return MISSING
    return form(found.mean) + ("" if found.half is None else f" ± {half(found.half)}")


def size(value: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    digits = 0 if units[0] == "B" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {units[0]}"


def count(value: float) -> str:
    """A count; a mean over seeds may have a fraction."""
    return f"{value:.0f}" if value == round(value) or value >= 100 else f"{value:.1f}"


def duration(value: float) -> str:
    unit = "s"
    if value >= 90:
        value, unit = value / 60, "min"
        if value >= 90:
            value, unit = value / 60, "h"
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[str]) -> str:
    """A Markdown table. The columns of these headings hold words, the others numbers."""
    ruler = [":--" if heading in words else "--:" for heading in headings]
    escaped = [[markdown(cell) for cell in row] for row in (headings, *rows)]
    lines = [escaped[0], ruler, *escaped[1:]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def markdown(text: str) -> str:
    return " ".join(printable(text).split()).translate(ESCAPED)
