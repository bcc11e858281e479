"""The files that a set of runs ends in: a table, and the pictures that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.records.files import write_atomically
from fedsteer.report.entries import title_of
from fedsteer.report.figures.accuracy import to_svg
from fedsteer.report.figures.coordinates import coordinates_svg, coordinates_table
from fedsteer.report.figures.core_size import core_size_svg, core_size_table
from fedsteer.report.figures.errors import errors_svg, errors_table
from fedsteer.report.figures.settings import settings_svg, settings_table
from fedsteer.report.origin import origin
from fedsteer.report.paper_table import paper_table_markdown
from fedsteer.report.summary import summarise
from fedsteer.report.tables import columns, to_markdown


class Figure(NamedTuple):
    """A figure of the paper: its picture, and its numbers as a Markdown table.

    Both take the runs and the order of the experiments, the picture also its title.
    """

    svg: Callable[[Iterable[Run], str, Sequence[str]], str]
    table: Callable[[Iterable[Run], Sequence[str]], str]


FIGURES = {
    "core-size": Figure(svg=core_size_svg, table=core_size_table),
    "heatmap": Figure(svg=coordinates_svg, table=coordinates_table),
    "errors": Figure(svg=errors_svg, table=errors_table),
    "changes": Figure(svg=settings_svg, table=settings_table),
}
"""`figure` of a paper table -> how it is drawn; any other is accuracy over rounds."""


def files_of(runs: Sequence[Run], paper_table: Mapping[str, Any] | None) -> dict[str, str]:
    """File name -> content.

    table.md       beside the paper's numbers, or the plain comparison without a paper table
    figure.svg     the paper's figure
    accuracy.svg   accuracy over training rounds, without a paper table
    cost.svg       accuracy over all rounds, warm-up included, and over bytes sent
    """
    return {"table.md": table_of(runs, paper_table), **_pictures(runs, paper_table)}


def write_files(
    runs: Sequence[Run], paper_table: Mapping[str, Any] | None, folder: Path
) -> list[Path]:
    """Write them into a folder; their paths. The table comes first: it needs no matplotlib."""
    written = [folder / "table.md"]
    write_atomically(written[0], table_of(runs, paper_table).encode())
    for name, content in _pictures(runs, paper_table).items():
        write_atomically(folder / name, content.encode())
        written.append(folder / name)
    return written


def table_of(runs: Sequence[Run], paper_table: Mapping[str, Any] | None) -> str:
    """`table.md`."""
    if paper_table is None:
        summary = summarise(runs)
        # Runs share a machine, so the time of one says little; the line below has the total.
        kept = [column.heading for column in columns(summary) if column.heading != "time"]
        return f"{to_markdown(summary, kept)}\n{origin(runs)}\n"
    figure = _figure_of(paper_table)
    numbers = "" if figure is None else _unless_missing(figure.table, runs, _order(paper_table))
    return paper_table_markdown(runs, paper_table, numbers or "")


def own_figure(runs: Sequence[Run], paper_table: Mapping[str, Any]) -> str | None:
    """The figure of a paper table as SVG, if it is another than accuracy over rounds."""
    figure, title = _figure_of(paper_table), str(paper_table.get("title", "Results"))
    return figure and _unless_missing(figure.svg, runs, title, _order(paper_table))


def _pictures(runs: Sequence[Run], paper_table: Mapping[str, Any] | None) -> dict[str, str]:
    if paper_table is None:
        name, title = "accuracy.svg", title_of(runs)
    elif _figure_of(paper_table) is not None:
        drawn = own_figure(runs, paper_table)
        return {} if drawn is None else {"figure.svg": drawn}
    else:
        name, title = "figure.svg", paper_table.get("title", "Results")
    order = _order(paper_table or {})
    accuracy = _unless_missing(to_svg, runs, str(title), ("train",), order)
    cost = _unless_missing(to_svg, runs, str(title), ("all", "sent"), order)
    return {name: accuracy, "cost.svg": cost} if accuracy and cost else {}


def _unless_missing(make: Callable[..., str], *arguments: Any) -> str | None:
    """None if the records lack the data: small archives leave some out, runs may fail."""
    try:
        return make(*arguments)
    except DataError:
        return None


def _figure_of(paper_table: Mapping[str, Any]) -> Figure | None:
    return FIGURES.get(str(paper_table.get("figure")))


def _order(paper_table: Mapping[str, Any]) -> list[str]:
    return list(paper_table.get("paper") or ())
