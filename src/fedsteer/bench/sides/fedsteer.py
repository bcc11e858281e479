"""fedsteer: the simulator's own loop and engine; threads as `--set run.threads=` would set them.

Every round goes through `Simulation.round`: participation, plan, local training with its losses,
FedAvg's checked step and the server optimiser. Nothing is evaluated, and no rows of records are
made, as the others make none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

import fedsteer
from fedsteer.bench.protocol import Channel, Gate
from fedsteer.bench.sides import How
from fedsteer.bench.work import Work
from fedsteer.data import Dataset, who_holds_what
from fedsteer.data.partition import partition_of
from fedsteer.rules import make_rule
from fedsteer.simulate.experiment import Experiment, Model, RunPlan
from fedsteer.simulate.loop import Simulation
from fedsteer.simulate.world import World, usable_cores
from fedsteer.training import (
    LocalTraining,
    TrainingData,
    choose_engine,
    make_engine,
    make_network,
)
from fedsteer.training.engines import choose_threads

NEVER = 1_000_000_000


def run(work: Work, how: How, channel: Channel) -> None:
    """Rounds of the simulator."""
    simulation = make_simulation(work, how.device, how.threads)
    world = simulation.world
    gate = Gate(
        channel,
        lambda: simulation.model.cpu().numpy(),
        settle=torch.cuda.synchronize if how.device != "cpu" else lambda: None,
        version=f"fedsteer {fedsteer.__version__}, torch {torch.__version__}",
        threads=f"{world.engine.name}, {torch.get_num_threads()} thread(s)",
    )
    while gate.next_round():
        simulation.round()


@dataclass(frozen=True)
class Timetable:
    """Participation as the work prescribes it; rounds are counted from 1 here."""

    work: Work

    @property
    def clients(self) -> int:
        """N."""
        return self.work.workload.clients

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Everybody comes equally often."""
        return np.full(self.clients, self.work.workload.cohort / self.clients)

    def present(self, round: int) -> NDArray[np.int64]:
        """The cohort."""
        return np.array(self.work.cohort(round - 1), np.int64)


def make_simulation(work: Work, device: str = "cpu", threads: int = 0) -> Simulation:
    """A simulation of this work, with FedAvg as the mean over participants."""
    workload = work.workload
    training = LocalTraining(
        epochs=workload.epochs, batch=workload.batch, rate=workload.rate, shuffle=False
    )
    experiment = Experiment(
        name=f"bench-{workload.key}",
        model=Model(workload.model),
        training=training,
        run=RunPlan(rounds=NEVER, evaluate_every=NEVER, device=device, watch=[]),
        rules=["fedavg"],
    )
    network = make_network(workload.model, workload.shape, workload.classes, {})
    network.module.to(device)
    threads = threads or choose_threads(network, usable_cores())
    torch.set_num_threads(threads)
    images = torch.as_tensor(work.images(), device=device)
    labels = torch.as_tensor(work.labels, device=device)
    held = [np.arange(len(work.labels))[work.own(client)] for client in range(workload.clients)]
    partition = partition_of(held, work.labels)
    data = TrainingData(images, labels, partition.indices, workload.classes)
    timetable, few = Timetable(work), slice(0, workload.points)
    world = World(
        experiment=experiment,
        seed=0,
        dataset=Dataset(
            "bench", work.pixels, work.labels, work.pixels[few], work.labels[few], workload.classes
        ),
        partition=partition,
        holds=who_holds_what(partition, work.labels),
        participation=timetable,
        reported=timetable.probabilities,
        network=network,
        engine=make_engine(choose_engine(network, device), network, data, training, 0),
        threads=threads,
        test_images=images[few],
        test_labels=labels[few],
        held_out=None,
        label_groups={},
    )
    simulation = Simulation(world, make_rule("fedavg", average="participants"))
    simulation.model = simulation.initial = torch.as_tensor(work.initial, device=device)
    return simulation
