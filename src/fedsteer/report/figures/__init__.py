"""The files that a set of runs ends in: a table, and the pictures that belong to it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.records.files import write_atomically
from fedsteer.report.entries import title_of
from fedsteer.report.figures.accuracy import to_svg
from fedsteer.report.figures.coordinates import heatmap_figure
from fedsteer.report.figures.errors import errors_figure
from fedsteer.report.figures.final_accuracy import core_size_figure, settings_figure
from fedsteer.report.figures.matrix import matrix_figure
from fedsteer.report.figures.plotting import Figure
from fedsteer.report.origin import origin
from fedsteer.report.paper_table import paper_table_markdown
from fedsteer.report.summary import summarise
from fedsteer.report.tables import columns, to_markdown

FIGURES = {
    "core-size": core_size_figure,
    "heatmap": heatmap_figure,
    "errors": errors_figure,
    "changes": settings_figure,
    "matrix": matrix_figure,
}
"""`figure` of a paper table -> what makes it; any other is accuracy over rounds."""


def files_of(
    runs: Sequence[Run], paper_table: Mapping[str, Any] | None
) -> Iterator[tuple[str, str]]:
    """File names with their contents. The table comes first: it needs no matplotlib.

    table.md       beside the paper's numbers, or the plain comparison without a paper table
    figure.svg     the paper's figure
    accuracy.svg   accuracy over training rounds, without a paper table
    cost.svg       accuracy over all rounds, warm-up included, and over bytes sent
    """
    yield "table.md", table_of(runs, paper_table)
    known = {"title": title_of(runs)} if paper_table is None else paper_table
    title, order = str(known.get("title", "Results")), list(known.get("paper") or ())
    if str(known.get("figure")) in FIGURES:
        if figure := own_figure(runs, known):
            yield "figure.svg", figure.svg(title)
        return
    name = "accuracy.svg" if paper_table is None else "figure.svg"
    with suppress(DataError):  # nothing was evaluated
        yield name, to_svg(runs, title, ("train",), order)
        yield "cost.svg", to_svg(runs, title, ("all", "sent"), order)


def write_files(
    runs: Sequence[Run], paper_table: Mapping[str, Any] | None, folder: Path
) -> list[Path]:
    written = []
    for name, content in files_of(runs, paper_table):
        write_atomically(folder / name, content.encode())
        written.append(folder / name)
    return written


def table_of(runs: Sequence[Run], paper_table: Mapping[str, Any] | None) -> str:
    if paper_table is None:
        summary = summarise(runs)
        # Runs share a machine, so the time of one says little; the line below has the total.
        kept = [column.heading for column in columns(summary) if column.heading != "time"]
        return f"{to_markdown(summary, kept)}\n{origin(runs)}\n"
    figure = own_figure(runs, paper_table)
    numbers, whole = (figure.table, figure.whole) if figure else ("", False)
    return paper_table_markdown(runs, paper_table, numbers, whole)


def own_figure(runs: Sequence[Run], paper_table: Mapping[str, Any]) -> Figure | None:
    """The figure of a paper table, if it is another than accuracy over rounds.

    None if the records lack its data: small archives leave some out, runs may fail.
    """
    make = FIGURES.get(str(paper_table.get("figure")))
    return make and make(runs, paper_table)
