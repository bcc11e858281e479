"""All files that a set of runs ends in: a table, and the pictures that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.records.files import write_atomically
from fedsteer.report.changes import changes_markdown, changes_svg
from fedsteer.report.drawing import to_svg
from fedsteer.report.entries import look
from fedsteer.report.formats import columns, to_markdown
from fedsteer.report.heatmaps import heatmaps_markdown, heatmaps_svg
from fedsteer.report.origin import origin
from fedsteer.report.published import published_markdown
from fedsteer.report.reconstruction import errors_markdown, errors_svg
from fedsteer.report.sizes import sizes_markdown, sizes_svg
from fedsteer.report.tables import summarise

Special = tuple[Callable[[Iterable[Run], str], str], Callable[[Iterable[Run]], str]]
SPECIAL: dict[str, Special] = {
    "core-size": (sizes_svg, sizes_markdown),
    "heatmap": (heatmaps_svg, heatmaps_markdown),
    "errors": (errors_svg, errors_markdown),
}
"""`figure` of a sheet -> its picture and a table of its numbers; "curves" are the default.
"changes" need the order of the sheet."""


def files_of(runs: Sequence[Run], sheet: Mapping[str, Any] | None) -> dict[str, str]:
    """File name -> content.

    table.md       beside the paper's figures, or the plain comparison where there is no sheet
    figure.svg     the paper's figure; accuracy over training rounds unless it is another one
    accuracy.svg   its name where there is no sheet
    cost.svg       accuracy over all rounds, warm-up included, and over bytes sent
    """
    if sheet is None:
        title = str(look(runs[0].manifest, "experiment", "title") or "Comparison")
        summary = summarise(runs)
        # A run's own time says little where runs share a machine; that of all stands below.
        kept = [one.heading for one in columns(summary) if one.heading != "time"]
        table = f"{to_markdown(summary, kept)}\n{origin(runs)}\n"
        return {"table.md": table} | _pictures(runs, title, "accuracy.svg")
    title = str(sheet.get("title", "Results"))
    special = _special(sheet)
    if special is None:
        table, order = published_markdown(runs, sheet), list(sheet.get("paper") or ())
        return {"table.md": table} | _pictures(runs, title, "figure.svg", order)
    picture, numbers = special
    try:
        drawn, extra = picture(runs, title), numbers(runs)
    except DataError:  # not kept in a small archive; the table can be made all the same
        return {"table.md": published_markdown(runs, sheet)}
    return {"table.md": published_markdown(runs, sheet, extra), "figure.svg": drawn}


def write_files(runs: Sequence[Run], sheet: Mapping[str, Any] | None, folder: Path) -> list[Path]:
    """Write them into a folder; their paths."""
    written = []
    for name, content in files_of(runs, sheet).items():
        write_atomically(folder / name, content.encode())
        written.append(folder / name)
    return written


def own_figure(runs: Sequence[Run], sheet: Mapping[str, Any]) -> str | None:
    """The figure of a sheet that is not one of curves, as SVG; None where there is none."""
    special = _special(sheet)
    try:
        return None if special is None else special[0](runs, str(sheet.get("title", "Results")))
    except DataError:
        return None


def _special(sheet: Mapping[str, Any]) -> Special | None:
    if sheet.get("figure") == "changes":
        order = list(sheet.get("paper") or ())
        return partial(changes_svg, order=order), partial(changes_markdown, order=order)
    return SPECIAL.get(str(sheet.get("figure")))


def _pictures(
    runs: Sequence[Run], title: str, name: str, order: Sequence[str] = ()
) -> dict[str, str]:
    try:
        return {
            name: to_svg(runs, title, order=order),
            "cost.svg": to_svg(runs, title, ("all", "sent"), order),
        }
    except DataError:  # nothing was evaluated
        return {}
