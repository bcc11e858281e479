"""`fedsteer run`: one rule, one seed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from fedsteer.cli.shared import add_command, add_experiment, place, read_experiment, writable


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(commands, "run", execute)
    add_experiment(parser)
    parser.add_argument(
        "--rule", default="fedsteer", help="a rule, rule:preset, full, or a variant of the file"
    )
    parser.add_argument("--seed", type=int, default=0, help="of every random draw; default: 0")
    parser.add_argument(
        "--out", type=place, metavar="DIR", help="default: runs/EXPERIMENT/RULE/..."
    )
    parser.add_argument(
        "--track", choices=("tensorboard",), help="also write what a tracker shows live"
    )


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    from fedsteer.cli.display import describe, progress_bar
    from fedsteer.errors import ConfigurationError
    from fedsteer.records.names import MANIFEST, SEED
    from fedsteer.rules import RULES
    from fedsteer.simulate.cells import Cell, find_rule
    from fedsteer.simulate.experiment_files import parse_settings
    from fedsteer.simulate.runner import Interrupted, Progress, run_cell

    if options.seed < 0:
        raise ConfigurationError(f"--seed must be at least 0, not {options.seed}")
    experiment = read_experiment(options)
    rule = find_rule(experiment, options.rule)
    if RULES[rule.name].own_rate and any(
        name.startswith("server.") for name in parse_settings(options.set)
    ):
        raise ConfigurationError(f"{rule.name} moves the model itself: server.* has no effect")
    rule.build(experiment, options.seed, [1.0])  # shows mistakes before data is loaded
    folder = options.out or Path("runs", experiment.name, rule.slug, f"{SEED}{options.seed}")
    writable(folder)
    if any(folder.glob(f"*/{SEED}*/{MANIFEST}")):
        raise ConfigurationError(f"{folder} holds a comparison, not a run; choose another --out")
    if options.resume and not (folder / MANIFEST).exists():
        print(f"fedsteer: no run to resume in {folder}; starting a new one", file=sys.stderr)
    trackers = []
    if options.track:
        from fedsteer.records.tensorboard import tensorboard_tracker

        trackers.append(tensorboard_tracker(folder))
    with progress_bar(experiment.run.rounds, rule.label, options.quiet) as update:

        def watch(progress: Progress) -> None:
            update(progress.trained, describe(progress))

        try:
            cell = Cell(experiment=experiment, rule=rule, seed=options.seed, folder=folder)
            run = run_cell(cell, resume=options.resume, watch=watch, trackers=trackers)
        except Interrupted:
            print("fedsteer: stopped; the same command with --resume continues", file=sys.stderr)
            return 130
    result = run.result or {}
    if options.json:
        print(json.dumps({"folder": str(folder), **result}))
        return 0
    known = {k: v for k, v in result.get("group_accuracy", {}).items() if v is not None}
    groups = ", ".join(f"{name} {accuracy:.3f}" for name, accuracy in known.items())
    print(f"{rule.label}: accuracy {result['accuracy']:.3f}" + (f" ({groups})" if groups else ""))
    if result["warm_up_rounds"]:
        print(f"  after {result['warm_up_rounds']} rounds of warm-up, which tables should not hide")
    print(f"  records in {folder}")
    return 0
