"""The stacked engine against the sequential loop on the same work, and cost over the population.

    python benchmarks/local_training.py

(a) one round of local training of all 100 clients on the digits, sizes skewed as in the paper, with
    the MLP; and of 10 clients with the paper's two small CNNs on made images (the engine that the
    static rule chooses against the sequential loop). Both engines run in turns on the same jobs and
    their updates are compared, so nobody skips work.
(b) seconds per round and resident memory with 100, 1,000 and 10,000 clients, 1 % of them active.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from fedsteer.simulate.entries import find_entry
from fedsteer.simulate.experiment import Experiment, load_experiment
from fedsteer.simulate.loop import Simulation
from fedsteer.simulate.world import build_world
from fedsteer.training import Job, choose_engine, make_engine

MADE = {"classes": 10, "side": 28, "points": 1_200}


def engines(experiment: Experiment, clients: int, repeats: int) -> dict[str, Any]:
    """Seconds of a round by the chosen engine and by the sequential one, and their difference."""
    world = build_world(experiment, 0)
    network, data = world.network, world.engine.data  # type: ignore[attr-defined]
    model = network.initial(0)
    chosen = choose_engine(network, "cpu")
    jobs = [Job(client) for client in range(clients)]
    spent: dict[str, list[float]] = {chosen: [], "sequential": []}
    updates = {}
    built = {name: make_engine(name, network, data, experiment.training, 0) for name in spent}
    for repeat in range(repeats + 1):
        for name, engine in built.items():
            start = time.perf_counter()
            updates[name] = engine.train(model, jobs, 1).updates
            if repeat:
                spent[name].append(time.perf_counter() - start)
    base, ours = updates["sequential"], updates[chosen]
    return {
        "model": experiment.model.name,
        "clients": clients,
        "engine": chosen,
        "threads": torch.get_num_threads(),
        "seconds": median(spent[chosen]),
        "sequential": median(spent["sequential"]),
        "ratio": median(np.array(spent["sequential"]) / np.array(spent[chosen])),
        "difference": float((base - ours).norm() / base.norm()),
    }


def peak_memory() -> int:
    """Most bytes this process ever held; getrusage would tell the parent's, if that is larger."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def population(clients: int, rounds: int) -> dict[str, Any]:
    """Seconds per round without evaluation, and the most memory this process ever held."""
    settings: dict[str, Any] = {
        "partition.clients": clients,
        "partition.replace": True,
        "participation.weak": 0.01,
        "participation.powerful": 0.01,
        "run.rounds": rounds,
        "run.evaluate_every": rounds,
    }
    experiment = load_experiment("digits", settings)
    entry = find_entry(experiment, "fedsteer:practical")
    simulation = Simulation(build_world(experiment, 0), entry.build(experiment, 0))
    times = []
    for happened in simulation.rounds():
        times.append(
            (happened.timing["seconds"] - happened.timing["evaluate"], happened.row["active"])
        )
    seconds = np.array([spent for spent, _ in times])
    active = np.array([count for _, count in times])
    return {
        "clients": clients,
        "active": float(active.mean()),
        "seconds per round": float(np.median(seconds)),
        "milliseconds per active client": 1e3 * float(seconds.sum() / max(active.sum(), 1)),
        "peak memory (GB)": peak_memory() / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Engines against each other; cost over N.")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--population", type=int, help="only (b), for this many clients")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.population:
        print(json.dumps(population(options.population, 60)))
        return
    made = {f"data.{key}": value for key, value in (("name", "made"), ("options", MADE))}
    rows = [engines(load_experiment("digits"), 100, options.repeats)]
    for name in ("emnist", "fashion-mnist"):
        experiment = load_experiment(name, made | {"partition.clients": 10})
        rows.append(engines(experiment, 10, max(2, options.repeats // 3)))
    print("(a) one round of local training, chosen engine against the sequential loop")
    for row in rows:
        print(
            f"  {row['model']:<12} {row['clients']:>4} clients  {row['engine']:<10} "
            f"{row['seconds']:8.3f} s  sequential {row['sequential']:8.3f} s  "
            f"ratio {row['ratio']:5.1f}  difference {row['difference']:.1e}"
        )
    print("(b) practical FedSteer, 1 % of the clients active, digits-sized data")
    sizes = []
    for clients in (100, 1_000, 10_000):
        command = [sys.executable, __file__, "--population", str(clients)]
        found = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
        sizes.append(json.loads(found.stdout))
        print("  " + ", ".join(f"{key} {value:.4g}" for key, value in sizes[-1].items()))
    if options.out:
        options.out.write_text(json.dumps({"engines": rows, "population": sizes}, indent=2))


if __name__ == "__main__":
    main()
