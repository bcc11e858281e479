"""`fedsteer report`: the page and the tables, from records alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedsteer.cli.shared import writable

EPILOG = """examples:
  fedsteer report runs/compare-digits                       writes runs/compare-digits/report.html
  fedsteer report runs/a runs/b --out both.html
  fedsteer report runs/compare-digits --format md           a table for a README
  fedsteer report runs/compare-digits --format svg --out accuracy.svg
"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="page or table from records",
        description="Make one self-contained HTML page, or a table, from records.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders with runs")
    parser.add_argument("--format", choices=("html", "md", "csv", "text", "svg"), default="html")
    parser.add_argument(
        "--baseline", help="differences are paired with this; default: fedavg, if it is there"
    )
    parser.add_argument("--title", help="of the page")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: DIR/report.html, or -")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    from fedsteer.records import find_runs
    from fedsteer.report import summarise, to_csv, to_markdown, to_svg, to_text, write_page

    runs = find_runs(*options.folders)
    rules = {run.manifest.get("rule", {}).get("name") for run in runs}
    baseline = options.baseline or ("fedavg" if "fedavg" in rules else None)
    first = runs[0].manifest.get("experiment", {})
    title = options.title or first.get("title") or first.get("name") or "fedsteer"
    if options.format == "html":
        path = options.out or options.folders[0] / "report.html"
        writable(path.parent)
        write_page(runs, path, title=title, baseline=baseline)
        print(path)
        return 0
    if options.format == "svg":
        text = to_svg(runs, title)
    else:
        rows = summarise(runs, baseline=baseline)
        text = {"md": to_markdown, "csv": to_csv, "text": to_text}[options.format](rows)
    if options.out is None:
        print(text.rstrip("\n"))
    else:
        options.out.write_text(text.rstrip("\n") + "\n")
    return 0
