"""The sides of `fedsteer bench`: the simulator, on a CPU and on a GPU, and a plain PyTorch loop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

import fedsteer
from fedsteer.bench.workloads import Work, Workload
from fedsteer.data import PARTITIONS
from fedsteer.data.partition import partition_of
from fedsteer.rules import make_rule
from fedsteer.simulate.experiment import Data, Experiment, Model, RunPlan
from fedsteer.simulate.loop import Simulation
from fedsteer.simulate.world import build_world
from fedsteer.training import LocalTraining

Weights = NDArray[np.float32]
ENDLESS = 1_000_000_000


@dataclass
class Contestant:
    """A side that is ready to train: `round` does one round."""

    round: Callable[[], object]
    model: Callable[[], Tensor]
    threads: int
    facts: dict[str, str]  # "version" and "threads", in words

    def rounds(self, count: int) -> float:
        """Run the next rounds; return the seconds they took."""
        torch.set_num_threads(self.threads)
        began = perf_counter()
        for _ in range(count):
            self.round()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return perf_counter() - began

    def weights(self) -> Weights:
        """The model as it is now."""
        return self.model().detach().cpu().numpy()


Sides = Mapping[str, Mapping[str, Callable[[Work], Contestant]]]
"""Every side by its name, in the ways to use the cores that are tried, by their labels."""


def start_fedsteer(work: Work, threads: int, device: str = "cpu") -> Contestant:
    """`Simulation.round` with FedAvg: participation, plan, training, checked step, optimiser.

    Nothing is evaluated and no records are written.
    """
    simulation = make_simulation(work, threads, device)
    engine, threads = simulation.world.engine.name, simulation.world.torch_threads
    return Contestant(
        round=simulation.round,
        model=lambda: simulation.model,
        threads=threads,
        facts={
            "version": f"fedsteer {fedsteer.__version__}, torch {torch.__version__}",
            "threads": f"{engine}, {threads} thread(s)",
        },
    )


@dataclass(frozen=True)
class Timetable:
    """The cohorts of a work as a participation process; the simulator counts rounds from 1."""

    clients: int
    cohorts: NDArray[np.int64]
    probabilities: None = None  # FedAvg as the mean over participants needs none

    def present(self, round: int) -> NDArray[np.int64]:
        return self.cohorts[(round - 1) % len(self.cohorts)]


def make_simulation(work: Work, threads: int = 0, device: str = "cpu") -> Simulation:
    """A simulation of this work, with FedAvg as the mean over participants."""
    workload = work.workload
    experiment = Experiment(
        data=Data(name="made", options=workload.data),
        partition=PARTITIONS["iid"](clients=workload.clients),  # replaced below
        model=Model(name=workload.model),
        training=LocalTraining(
            epochs=workload.epochs, batch=workload.batch, rate=workload.rate, shuffle=False
        ),
        run=RunPlan(rounds=ENDLESS, evaluate_every=ENDLESS, device=device, threads=threads),
    )
    points = np.arange(len(work.labels))
    held = [points[work.own(client)] for client in range(workload.clients)]
    world = replace(
        build_world(experiment, 0),
        partition=partition_of(held, work.labels),
        participation=Timetable(clients=workload.clients, cohorts=work.cohorts),
        reported=None,
    )
    return Simulation(world, make_rule("fedavg", average="participants"))


def start_plain(work: Work, threads: int) -> Contestant:
    """What you would write first: nn.Module and torch.optim.SGD, client after client."""
    torch.set_num_threads(threads)
    module = work.workload.network().module
    images, labels = torch.from_numpy(work.images), torch.from_numpy(work.labels)
    parameters = list(module.parameters())
    number = 0

    def round() -> None:
        nonlocal number
        start = [parameter.detach().clone() for parameter in parameters]
        total = [torch.zeros_like(value) for value in start]
        cohort = work.cohort(number)
        for client in cohort:
            with torch.no_grad():
                torch._foreach_copy_(parameters, start)
            own = work.own(client)
            train(module, images[own], labels[own], work.workload)
            with torch.no_grad():
                torch._foreach_add_(total, parameters)
        with torch.no_grad():
            torch._foreach_div_(total, float(len(cohort)))
            torch._foreach_copy_(parameters, total)
        number += 1

    return Contestant(
        round=round,
        model=lambda: parameters_to_vector(parameters),
        threads=threads,
        facts={"version": f"torch {torch.__version__}", "threads": f"{threads} thread(s)"},
    )


def train(module: nn.Module, images: Tensor, labels: Tensor, workload: Workload) -> None:
    """The epochs of one client, batches in stored order."""
    optimiser = torch.optim.SGD(module.parameters(), lr=workload.rate)
    for _ in range(workload.epochs):
        batches = zip(images.split(workload.batch), labels.split(workload.batch), strict=True)
        for some, targets in batches:
            optimiser.zero_grad()
            F.cross_entropy(module(some), targets).backward()
            optimiser.step()


def pfl_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The small CNN of pfl-research's CIFAR-10 benchmark, without its two dropouts.

    Every library draws its dropout masks differently, so final weights could not be compared.
    """
    channels, height, width = shape
    features = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes),
    )  # fmt: skip


def threads_to_try(cores: int) -> dict[str, int]:
    """One, and one per core, by their labels."""
    return {"1 thread": 1} | ({f"{cores} threads": cores} if cores > 1 else {})


def sides_here(cores: int) -> Sides:
    """The simulator, on a GPU too if there is one, and the plain loop."""
    threads = threads_to_try(cores).items()
    sides = {"fedsteer": {way: partial(start_fedsteer, threads=count) for way, count in threads}}
    if torch.cuda.is_available():
        sides["fedsteer-gpu"] = {
            "its own choice": partial(start_fedsteer, threads=0, device="cuda")
        }
    sides["plain"] = {way: partial(start_plain, threads=count) for way, count in threads}
    return sides
