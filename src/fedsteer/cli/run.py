"""`fedsteer run`: one rule, one seed."""

import argparse
import json
import sys
from pathlib import Path

from fedsteer.cli.display import describe, progress_bar
from fedsteer.cli.shared import read_experiment, tell_failures, writable
from fedsteer.errors import ConfigurationError
from fedsteer.records.names import MANIFEST, SEED
from fedsteer.records.trackers import tensorboard_tracker
from fedsteer.rules import RULES
from fedsteer.simulate.cells import Cell, find_rule
from fedsteer.simulate.experiment_files import parse_settings
from fedsteer.simulate.runner import Interrupted, run_cell


def execute(options: argparse.Namespace) -> int:
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
    trackers = [tensorboard_tracker(folder)] if options.track else []
    rounds = experiment.run.rounds
    with progress_bar(rounds, rule.label, options.quiet) as update:
        try:
            run = run_cell(
                Cell(experiment=experiment, rule=rule, seed=options.seed, folder=folder),
                resume=options.resume,
                watch=lambda progress: update(
                    progress["training_round"], describe(progress, rounds)
                ),
                trackers=trackers,
            )
        except Interrupted:
            raise KeyboardInterrupt("stopped; the same command with --resume continues") from None
    if tell_failures([run]):
        return 1
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
