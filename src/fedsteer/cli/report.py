"""`fedsteer report`: the page, tables and pictures, from records alone."""

import argparse
import sys
from pathlib import Path

from fedsteer.cli.shared import tell_left_out, writable
from fedsteer.errors import ConfigurationError, DataError
from fedsteer.records import Run, find_runs, read_sheet, runs_of_sheet, without_copies
from fedsteer.records.files import write_atomically
from fedsteer.report import summarise, to_csv, to_markdown, to_text, write_files
from fedsteer.report.entries import title_of
from fedsteer.report.figures import table_of
from fedsteer.report.figures.accuracy import to_svg
from fedsteer.report.page import render

STDOUT = Path("-")


def execute(options: argparse.Namespace) -> int:
    if options.columns is not None and options.format != "md":
        raise ConfigurationError("--columns goes with --format md")
    if options.title is not None and options.format not in ("html", "svg"):
        raise ConfigurationError("--title goes with --format html or svg")
    found = [(find_runs(place), read_sheet(place)) for place in options.folders]
    # If a folder names a table of the paper, only the runs of that: tables may share folders.
    runs = without_copies(run for own, sheet in found for run in runs_of_sheet(own, sheet))
    tell_left_out(sum(len(own) for own, _ in found) - len(runs), "in this report")
    if options.format == "published":
        return _published(options, runs)
    # The table of the paper that all of them belong to, if any.
    sheets = [sheet or {} for _, sheet in found]
    paper_table = sheets[0] if len({str(one.get("title")) for one in sheets}) == 1 else {}
    title = options.title or paper_table.get("title") or title_of(runs)
    if options.format == "html":
        text = render(runs, title, options.baseline, paper_table)
    elif options.format == "svg":
        text = to_svg(runs, title)
    else:
        rows = summarise(runs, options.baseline)
        if options.format == "md":
            wanted = None if options.columns is None else options.columns.split(",")
            text = to_markdown(rows, wanted and [name.strip() for name in wanted])
        else:
            text = {"csv": to_csv, "text": to_text}[options.format](rows)
    _deliver(options, text.rstrip("\n") + "\n")
    return 0


def _deliver(options: argparse.Namespace, text: str) -> None:
    """Write to standard output or into a file; print the name of a page."""
    page, first = options.format == "html", options.folders[0]
    beside = first.parent if first.is_file() else first
    path: Path = options.out or (beside if page else STDOUT)
    if path == STDOUT:
        bare = getattr(sys.stdout, "buffer", None)
        if bare and (page or options.format == "svg"):  # both declare UTF-8
            sys.stdout.flush()
            bare.write(text.encode())
        else:
            print(text, end="")
        return
    if path.is_dir():
        path /= f"report.{'txt' if options.format == 'text' else options.format}"
    if path.is_dir():
        raise ConfigurationError(f"cannot write to {path}: it is a folder")
    writable(path.parent)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_text(text, encoding="utf-8")  # /dev/stdout or a pipe must not be replaced
    else:
        write_atomically(path, text.encode())
    if page:
        print(path)


def _published(options: argparse.Namespace, runs: list[Run]) -> int:
    """Print the paper table, or write all its files into --out."""
    paper_table = read_sheet(*options.folders)
    if paper_table is None:
        raise DataError(
            f"{options.folders[0]} does not say which table of the paper it is; "
            "name it with `fedsteer pack DIR --sheet NAME --out FILE`"
        )
    if options.out in (None, STDOUT):
        print(table_of(runs, paper_table).rstrip("\n"))
        return 0
    for path in write_files(runs, paper_table, writable(options.out)):
        print(path)
    return 0
