"""`fedsteer bench`: how fast this machine simulates, beside a plain loop and other simulators."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

EPILOG = """workloads:
  a  MLP 784-64-10, 100 clients x 100 points, 10 active, batch 20, 1 epoch
  b  EMNIST CNN, 100 clients x 100 points, 10 active, batch 64, 5 epochs
  c  pfl's CIFAR-10 CNN, 1000 clients x 50 points, 50 active, batch 10, 1 epoch (minutes)

Everybody does the same work from the same weights, in turns, each in a process of its own. `ratio`
is a simulator's time over fedsteer's within a repetition: above 1 fedsteer is faster. `distance` is
how far its final weights are from the plain loop's; more than 1e-05 means that it did other work.
Threads: 1, one per core, and processes where a simulator offers them are tried, and the fastest is
measured.

examples:
  fedsteer bench                          fedsteer, a plain PyTorch loop, and whatever is installed
  fedsteer bench --workload a --repeats 20
  fedsteer bench --peers plain,pfl --json
  fedsteer bench --quick                  does it work? seconds, and the numbers mean nothing

All peers, each in an environment of its own: `make bench-peers` in a clone of the repository.
"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="time a round here, beside other simulators",
        description="Time a federated round on this machine, beside a plain PyTorch loop and the "
        "simulators installed in this environment (pfl, fedjax, flwr with ray).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workload", default="a,b", metavar="KEYS", help="of a, b, c; default a,b")
    parser.add_argument("--peers", metavar="NAMES", help="of plain, pfl, fedjax, flower")
    parser.add_argument(
        "--repeats", type=int, metavar="N", help="repetitions; default: 9, or 3 of long ones"
    )
    parser.add_argument("--quick", action="store_true", help="only show that it works")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    from fedsteer.bench import machine
    from fedsteer.bench.measure import OURS, SHORT, Plan, measure
    from fedsteer.bench.processes import WorkerFailed
    from fedsteer.bench.sides import SIDES, installed
    from fedsteer.bench.table import to_json, to_text
    from fedsteer.bench.workloads import WORKLOADS
    from fedsteer.cli.display import progress_bar
    from fedsteer.errors import ConfigurationError, unknown
    from fedsteer.simulate.world import usable_cores

    if options.repeats is not None and options.repeats < 2:
        raise ConfigurationError(f"--repeats must be at least 2, not {options.repeats}")
    keys = [key.strip() for key in options.workload.split(",")]
    for key in keys:
        if key not in WORKLOADS:
            raise unknown("workload", key, WORKLOADS)
    ours = [name for name in (OURS, "fedsteer-gpu") if installed(SIDES[name])]
    others = [name for name in SIDES if not name.startswith(OURS)]
    if options.peers is not None:
        wanted = [name.strip() for name in options.peers.split(",")]
        for name in wanted:
            if name not in others:
                raise unknown("peer", name, others)
            if not installed(SIDES[name]):
                raise ConfigurationError(
                    f"{name} cannot run here: it needs {' and '.join(SIDES[name].needs)}"
                )
    else:
        wanted = [name for name in others if installed(SIDES[name])]
    if options.quick:
        keys, wanted = keys[:1], wanted[:1]
    plans = {key: Plan(1, 1, 1, 2) if options.quick else SHORT[key] for key in keys}
    if options.repeats is not None:
        plans = {key: replace(plan, repeats=options.repeats) for key, plan in plans.items()}
    pythons = dict.fromkeys([*ours, *dict.fromkeys(wanted)], sys.executable)
    facts = machine.facts()
    cores = 1 if options.quick else usable_cores()
    if not options.json:
        print(machine.in_words(facts))
    results = []
    total = sum(plan.steps(pythons, cores) for plan in plans.values())
    with progress_bar(total, "bench", options.quiet) as update:
        done = 0

        def tell(words: str) -> None:
            nonlocal done
            update(done, words)
            done += 1

        for key, plan in plans.items():
            with tempfile.TemporaryDirectory(prefix="fedsteer-bench-") as folder:
                try:
                    found = measure(WORKLOADS[key], plan, pythons, Path(folder), cores, tell)
                except WorkerFailed as error:
                    print(f"fedsteer: {error}", file=sys.stderr)
                    return 1
            results.append(found)
            if not options.json:
                print(f"\n{to_text(results[-1])}")
    if options.json:
        print(json.dumps({"machine": facts, "workloads": [to_json(found) for found in results]}))
    failed = [words for found in results for words in found.failures.values()]
    for words in failed:
        print(f"fedsteer: {words}", file=sys.stderr)
    return 1 if failed else 0
