"""`fedsteer bench`: how fast this machine simulates, beside a plain PyTorch loop."""

import argparse
import json
from dataclasses import replace
from itertools import count

from fedsteer.bench import machine
from fedsteer.bench.measure import Plan, measure
from fedsteer.bench.sides import sides_here
from fedsteer.bench.table import to_text
from fedsteer.bench.workloads import WORKLOADS, make_work
from fedsteer.cli.display import progress_bar
from fedsteer.errors import ConfigurationError, check_name

SHORT = {  # a minute or so
    "a": Plan(warm_up=3, trials=3, block=5, repeats=9, lead_in=2),
    "b": Plan(warm_up=1, trials=1, block=1, repeats=3, lead_in=1),
    "c": Plan(warm_up=1, trials=1, block=1, repeats=3, lead_in=1),
}


def execute(options: argparse.Namespace) -> int:
    if options.repeats is not None and options.repeats < 2:
        raise ConfigurationError(f"--repeats must be at least 2, not {options.repeats}")
    keys = [key.strip() for key in options.workload.split(",")]
    for key in keys:
        check_name("workload", key, WORKLOADS)
    for name in map(str.strip, options.peers.split(",")):
        if name in ("pfl", "fedjax", "flower"):
            raise ConfigurationError(
                f"{name} is measured by `make bench-peers` in a clone of the repository"
            )
        check_name("peer", name, ["plain"])
    facts = machine.facts()
    cores, plans = facts["cores"], {key: SHORT[key] for key in keys}
    if options.quick:
        cores, plans = 1, {keys[0]: Plan(warm_up=1, trials=1, block=1, repeats=2)}
    sides = sides_here(cores)
    if options.repeats is not None:
        plans = {key: replace(plan, repeats=options.repeats) for key, plan in plans.items()}
    if not options.json:
        print(machine.in_words(facts))
    results = []
    total = sum(len(sides) + plan.repeats for plan in plans.values())
    with progress_bar(total, "bench", options.quiet) as update:
        done = count()
        for key, plan in plans.items():
            work = make_work(WORKLOADS[key])
            results.append(measure(work, plan, sides, lambda words: update(next(done), words)))
            if not options.json:
                print(f"\n{to_text(results[-1])}")
    if options.json:
        print(json.dumps({"machine": facts, "workloads": results}))
    return 0
