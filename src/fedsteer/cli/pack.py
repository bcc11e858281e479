"""`fedsteer pack`: many runs in one small file, for a repository."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedsteer.cli.shared import add_command, place, tell_left_out, writable


def add(commands: Any) -> None:
    """Add the command."""
    from fedsteer.records.pack import CLIENTS

    parser = add_command(commands, "pack", execute)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders with runs")
    parser.add_argument("--out", type=place, metavar="FILE", required=True, help="*.tar.xz")
    parser.add_argument(
        "--clients",
        choices=CLIENTS,
        default="first",
        help="client rows and coordinates: of the first seed of each rule (default), none, or all",
    )
    parser.add_argument(
        "--sheet",
        metavar="NAME",
        help="the table of the paper that these runs belong to, if DIR does not say so itself "
        "(`fedsteer reproduce` leaves a sheet.json)",
    )
    parser.add_argument(
        "--command",
        dest="made_by",  # `command` is the word after `fedsteer`
        metavar="TEXT",
        help="with --sheet: what was typed to make these runs",
    )


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    from fedsteer.errors import ConfigurationError
    from fedsteer.records import find_runs, pack_records

    if not options.out.name.endswith(".tar.xz"):
        raise ConfigurationError(f"--out must end in .tar.xz, not {options.out.name}")
    if options.made_by is not None and options.sheet is None:
        raise ConfigurationError("--command goes with --sheet")
    sheet = None
    if options.sheet is not None:
        from fedsteer.simulate.paper_table import READINGS, load_paper_table

        sheet = load_paper_table(options.sheet).record(options.made_by or "")
        for reading in READINGS:  # the names of the runs' experiments tell which one it was
            sheet["paper"] |= load_paper_table(options.sheet, reading=reading).record()["paper"]
    writable(options.out.parent)
    there = len(find_runs(*options.folders))
    count = pack_records(options.folders, options.out, clients=options.clients, sheet=sheet)
    size = options.out.stat().st_size
    print(f"{options.out}: {count} runs, {size / 1000:.0f} kB")
    tell_left_out(there - count, "in the file")
    return 0
