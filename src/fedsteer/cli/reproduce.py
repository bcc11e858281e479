"""`fedsteer reproduce`: a table or figure of the paper, beside the published numbers."""

import argparse
import sys
from pathlib import Path

from fedsteer.cli.display import run_cells
from fedsteer.cli.shared import tell_failures, writable
from fedsteer.errors import ConfigurationError
from fedsteer.records import find_runs, read_sheet, runs_of_sheet
from fedsteer.records.files import write_json
from fedsteer.records.names import SHEET
from fedsteer.records.reader import join_sheets
from fedsteer.report import write_files, write_page
from fedsteer.simulate.experiment_files import parse_settings, shipped_experiments
from fedsteer.simulate.paper_table import load_paper_table
from fedsteer.simulate.tuning import choices_of


def execute(options: argparse.Namespace) -> int:
    if options.name == "list":
        if options.only:
            raise ConfigurationError("--only goes with the name of a table or figure")
        for name, text in shipped_experiments("paper").items():
            print(f"{name:<16}{text.splitlines()[0].removeprefix('# ')}")
        return 0
    settings = {"run.device": options.device} | parse_settings(options.set)
    if options.rounds is not None:
        settings["run.rounds"] = options.rounds
    paper_table = load_paper_table(
        options.name,
        reading=options.reading,
        settings=settings,
        seeds=options.seeds,
        only=options.only,
        smoke=options.smoke,
    )
    for setting in settings:
        idle = [one.without_effect([setting]) for one in paper_table.experiments]
        if all(idle):
            raise ConfigurationError(str(idle[0]))
    absent = paper_table.absent_files()
    lines = [
        f"{column} needs {path}, which is neither here nor in $FEDSTEER_DATA/traces; "
        "docs/traces.md says where to get it"
        for column, path in absent.items()
    ]
    if len(absent) == len(paper_table.experiments):
        raise ConfigurationError(lines[0])
    for line in lines:
        print(f"fedsteer: left out: {line}", file=sys.stderr)
    paper_table = paper_table.without(absent)
    out = writable(options.out or Path("runs", _folder(options)))
    before = read_sheet(out)
    if before is not None and before.get("name") != paper_table.name:
        print(
            f"{out} held {before.get('name')}: its table, figure and page are replaced, its runs "
            "stay",
            file=sys.stderr,
        )
        before = None
    command = _command(options)
    write_json(out / SHEET, join_sheets(before, paper_table.record(command)))
    trials = paper_table.tuning_cells(out)
    if trials:
        run_cells(trials, options)
    choices = choices_of(trials)
    record = join_sheets(before, paper_table.record(command, choices))
    write_json(out / SHEET, record)
    runs = run_cells(paper_table.cells(out, choices), options)
    # The table includes columns of earlier commands, but no runs of other tables.
    everything = runs_of_sheet(find_runs(out), record)
    page = write_page(everything, out / "report.html", title=paper_table.title, paper_table=record)
    written = write_files(everything, record, out)  # last: the pictures need matplotlib
    print((out / "table.md").read_text())
    print("\n".join(f"wrote {path}" for path in (*written, page)))
    return tell_failures(runs)


def _folder(options: argparse.Namespace) -> str:
    """The default folder, one per reading, so two readings never share a table."""
    reading = "" if options.reading == "paper" else options.reading
    words = ("reproduce", options.name, options.only, reading, "smoke" if options.smoke else "")
    return "-".join(word for word in words if word)


def _command(options: argparse.Namespace) -> str:
    """What was typed, without places on this machine and options that change no number."""
    words = ["fedsteer", "reproduce", options.name]
    usual = {"reading": "paper", "only": None, "seeds": None, "rounds": None, "device": "cpu"}
    for name, default in usual.items():
        if (value := getattr(options, name)) != default:
            words += [f"--{name}", str(value)]
    words += ["--smoke"] if options.smoke else []
    for setting in options.set:
        words += ["--set", setting]
    return " ".join(words)
