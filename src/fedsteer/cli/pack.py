"""`fedsteer pack`: many runs in one small file, for a repository."""

import argparse
from contextlib import suppress

from fedsteer.cli.shared import tell_left_out, writable
from fedsteer.errors import ConfigurationError
from fedsteer.records import find_runs, pack_records
from fedsteer.simulate.paper_table import READINGS, load_paper_table


def execute(options: argparse.Namespace) -> int:
    if not options.out.name.endswith(".tar.xz"):
        raise ConfigurationError(f"--out must end in .tar.xz, not {options.out.name}")
    if options.made_by is not None and options.sheet is None:
        raise ConfigurationError("--command goes with --sheet")
    sheet = None
    if options.sheet is not None:
        sheet = load_paper_table(options.sheet).record(options.made_by or "")
        for reading in READINGS:  # the names of the runs' experiments tell which one it was
            with suppress(ConfigurationError):  # a table may have no other reading
                sheet["paper"] |= load_paper_table(options.sheet, reading=reading).record()["paper"]
    writable(options.out.parent)
    there = len(find_runs(*options.folders))
    kept = {"clients": options.clients, "rounds": options.rounds}
    count = pack_records(options.folders, options.out, sheet=sheet, **kept)
    size = options.out.stat().st_size
    print(f"{options.out}: {count} runs, {size / 1000:.0f} kB")
    tell_left_out(there - count, "in the file")
    return 0
