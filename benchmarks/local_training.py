"""The chosen engine against the sequential one and a plain loop; cost over the population.

    python benchmarks/local_training.py

(a) one round of local training on a CPU: 100 clients on the digits with the MLP, sizes skewed as in
    the paper; 10 clients of 100 points with the paper's two small CNNs on made-up images; 50
    clients of 50 points of 32 x 32 x 3, batch 10, one epoch, with the CNN of pfl-research's
    CIFAR-10 benchmark (without its dropout). Engines run in turns on the same orders and their
    updates are compared, so skipped work would show. The plain loop is an nn.Module and
    torch.optim.SGD.
(b) seconds per round and resident memory with 100, 1,000 and 10,000 clients, 1 % of them active.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from costs.timing import peak_memory
from fedsteer.bench.sides import pfl_cnn
from fedsteer.simulate.cells import find_rule
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.experiment_files import load_experiment
from fedsteer.simulate.loop import Simulation
from fedsteer.simulate.world import build_world
from fedsteer.training import (
    LocalTraining,
    Network,
    Order,
    TrainingData,
    choose_engine,
    choose_threads,
    make_engine,
)

NETWORKS = ("mlp", "emnist-cnn", "fashion-cnn", "cifar-cnn")
MADE = {"classes": 10, "side": 28, "points": 1_200}


def plain_loop(
    network: Network, data: TrainingData, how: LocalTraining, clients: Sequence[NDArray[np.int64]]
) -> None:
    """One client after the other, as in any tutorial; only the module is fedsteer's."""
    module = network.factory()
    start = [value.detach().clone() for value in module.parameters()]
    for own in clients:
        with torch.no_grad():
            for value, first in zip(module.parameters(), start, strict=True):
                value.copy_(first)
        optimiser = torch.optim.SGD(module.parameters(), lr=how.rate)
        points = torch.as_tensor(own)
        for _ in range(how.epochs):
            order = points[torch.randperm(len(points))]
            for picked in order.split(how.batch or len(order)):
                optimiser.zero_grad()
                logits = module(data.images[picked])
                torch.nn.functional.cross_entropy(logits, data.labels[picked]).backward()
                optimiser.step()


def engines(
    name: str,
    network: Network,
    data: TrainingData,
    how: LocalTraining,
    clients: Sequence[NDArray[np.int64]],
    repeats: int,
) -> dict[str, Any]:
    """Seconds of a round by the chosen engine and by the others, and the engines' difference."""
    model = network.initial(0)
    chosen = choose_engine(network, how, "cpu")
    cores = os.cpu_count() or 1
    threads = choose_threads(network, cores)
    orders = [
        Order(client=client, points=points, seed=0, round=1, start=model)
        for client, points in enumerate(clients)
    ]
    updates: dict[str, Tensor] = {}

    def by(engine: str) -> Callable[[], None]:
        made = make_engine(engine, network, data, how)

        def train() -> None:
            updates[engine] = made.train_orders(orders).updates

        return train

    plain = partial(plain_loop, network, data, how, clients)
    ways: dict[str, tuple[int, Callable[[], None]]] = {
        "chosen": (threads, by(chosen)),
        "sequential": (threads, by("sequential")),
        "plain, one thread": (1, plain),
        "plain, all threads": (cores, plain),
    }
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats + 1):
        for way, (count, work) in ways.items():
            torch.set_num_threads(count)
            start = time.perf_counter()
            work()
            if repeat:
                spent[way].append(time.perf_counter() - start)
    base, ours = updates["sequential"], updates[chosen]
    ratios = {way: median(np.array(took) / spent["chosen"]) for way, took in spent.items()}
    return {
        "model": name,
        "clients": len(clients),
        "engine": chosen,
        "threads": threads,
        "seconds": median(spent["chosen"]),
        "sequential": median(spent["sequential"]),
        "ratio": ratios["sequential"],
        "plain": min(median(spent["plain, one thread"]), median(spent["plain, all threads"])),
        "plain ratio": min(ratios["plain, one thread"], ratios["plain, all threads"]),
        "difference": float((base - ours).norm() / base.norm()),
    }


def of_experiment(experiment: Experiment, clients: int, repeats: int) -> dict[str, Any]:
    """`engines` on the network and data of an experiment."""
    world = build_world(experiment, 0)
    points = world.partition.indices[:clients]
    given = (world.network, world.engine.data, experiment.training, points, repeats)
    return engines(experiment.model.name, *given)


def measured(name: str, repeats: int) -> dict[str, Any]:
    """The row of one network; the large ones are measured a third as often."""
    few = max(2, repeats // 3)
    if name == "mlp":
        return of_experiment(load_experiment("digits"), 100, repeats)
    if name == "cifar-cnn":
        return of_cifar_cnn(few)
    made = {
        "data.name": "made",
        "data.options": MADE,
        "partition.kind": "iid",
        "partition.clients": 10,
        "partition.points": 100,
        # At the experiments' own rates a client can diverge on made-up images. Rounding errors
        # then grow without bound, and the difference would say nothing.
        "training.rate": 0.05,
    }
    experiment = {"emnist-cnn": "emnist", "fashion-cnn": "fashion-mnist"}[name]
    return of_experiment(load_experiment(experiment, made), 10, few)


def of_cifar_cnn(repeats: int, clients: int = 50, points: int = 50) -> dict[str, Any]:
    """`engines` on the shapes of pfl-research's CIFAR-10 benchmark."""
    draw = torch.Generator().manual_seed(0)
    images = torch.rand((clients * points, 3, 32, 32), generator=draw)
    labels = torch.randint(0, 10, (clients * points,), generator=draw)
    split = np.split(np.arange(clients * points), clients)
    how = LocalTraining(epochs=1, batch=10, rate=0.1)
    data = TrainingData(images=images, labels=labels, classes=10)
    network = Network(partial(pfl_cnn, (3, 32, 32), 10))
    return engines("cifar-cnn", network, data, how, split, repeats)


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
    entry = find_rule(experiment, "fedsteer:practical")
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
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--population", type=int, help="only (b), for this many clients")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.population:
        print(json.dumps(population(options.population, 60)))
        return
    print("(a) one round of local training: chosen engine, sequential loop, plain PyTorch loop")
    rows = []
    for name in options.networks:
        rows.append(measured(name, options.repeats))
        row = rows[-1]
        print(
            f"  {row['model']:<12} {row['clients']:>4} clients  {row['engine']:<10} "
            f"{row['seconds']:8.3f} s  sequential {row['sequential']:8.3f} s  "
            f"ratio {row['ratio']:5.1f}  plain {row['plain']:8.3f} s  "
            f"ratio {row['plain ratio']:5.1f}  difference {row['difference']:.1e}",
            flush=True,
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
