"""`fedsteer compare`: rules side by side, with the same draws and honest intervals."""

import argparse
import json
import shutil
import sys
from pathlib import Path

from fedsteer.cli.display import run_cells
from fedsteer.cli.shared import read_experiment, tell_failures, writable
from fedsteer.errors import ConfigurationError
from fedsteer.records import find_runs
from fedsteer.report import summarise, to_text, write_page
from fedsteer.simulate.cells import find_rule, plan_cells
from fedsteer.simulate.experiment import RunPlan


def execute(options: argparse.Namespace) -> int:
    experiment = read_experiment(options)
    if options.seeds is not None:
        experiment = experiment.changed({"seeds": options.seeds})
    try:
        baseline: str | None = find_rule(experiment, experiment.run.baseline).label
    except ConfigurationError as error:
        raise ConfigurationError(f"run.baseline: {error}") from None
    names = experiment.rules if options.rules is None else options.rules.split(",")
    out = writable(options.out or Path("runs", f"compare-{experiment.name}"))
    cells = plan_cells(experiment, [name.strip() for name in names], out)
    if baseline not in {cell.rule.label for cell in cells}:
        if experiment.run.baseline != RunPlan().baseline:
            raise ConfigurationError(
                f"run.baseline = {experiment.run.baseline} is not one of the rules to compare"
            )
        baseline = None
    everything = run_cells(cells, options)
    runs = [run for run in everything if run.damage is None]
    if not runs:
        return tell_failures(everything)
    if baseline not in {run.label for run in runs}:
        baseline = None
    rows = summarise(runs, baseline=baseline)
    page = out / "report.html"
    write_page(runs, page, title=experiment.title or experiment.name, baseline=baseline)
    if options.json:
        print(json.dumps({"folder": str(out), "page": str(page), "rules": rows.records()}))
        return tell_failures(everything)
    # Output that goes elsewhere has to be complete.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(to_text(rows, width=width))
    print(f"\npage: {page}")
    others = len(find_runs(out)) - len(everything)
    if others:
        print(f"{others} other runs in {out} are not on it; `fedsteer report {out}` shows all")
    return tell_failures(everything)
