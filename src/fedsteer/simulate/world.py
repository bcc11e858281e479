"""What every rule of a comparison meets under one seed: data, clients, participation, network.

Partition, participation, batches and the initial model depend on the seed alone, so differences
between rules are paired.
"""

import json
import os
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.data import Dataset, Partition, load
from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError
from fedsteer.participation import PROCESSES, Participation
from fedsteer.simulate.experiment import Experiment
from fedsteer.training import (
    Engine,
    Network,
    TrainingData,
    choose_threads,
    make_engine,
    make_network,
)
from fedsteer.training.models import try_out

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """One (experiment, seed), as every rule meets it."""

    experiment: Experiment
    seed: int
    dataset: Dataset
    partition: Partition  # what clients begin with
    participation: Participation
    reported: Floats | None  # p_i as rules are told
    network: Network
    engine: Engine
    torch_threads: int
    test_images: Tensor
    test_labels: Tensor
    held_out: tuple[Tensor, Tensor] | None  # training points that no client ever holds

    @property
    def sizes(self) -> Floats:
        """n_i."""
        return self.partition.sizes.astype(np.float64)


def usable_cores() -> int:
    """The cores this process may use; in a container fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def build_world(experiment: Experiment, seed: int, everybody: bool = False) -> World:
    """Load, divide and set up. `everybody`: full participation instead of the experiment's."""
    device = experiment.run.device
    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigurationError(f"device {device!r} was asked for, but there is no CUDA here")
    dataset, tensors = _load(json.dumps(asdict(experiment.data), sort_keys=True), device)
    images, labels, test_images, test_labels = tensors
    partition = experiment.partition.divide(dataset.train_labels, seed)
    participation = PROCESSES["everybody"]() if everybody else experiment.participation
    present = participation.process(partition.clients, seed)
    network = make_network(
        experiment.model.name, dataset.shape, dataset.classes, experiment.model.options
    )
    network.module.to(device)
    torch_threads = experiment.run.threads or choose_threads(network, usable_cores())
    torch.set_num_threads(torch_threads)
    if ":" in experiment.model.name:  # not one of ours
        try_out(experiment.model.name, network, images, dataset.classes)
    kept = max(1, round(experiment.run.test_share * len(test_labels)))
    data = TrainingData(images, labels, dataset.classes)
    exact = experiment.run.precision == "float32"
    engine = make_engine(experiment.run.engine, network, data, experiment.training, exact)
    return World(
        experiment=experiment,
        seed=seed,
        dataset=dataset,
        partition=partition,
        participation=present,
        reported=participation.told(present, seed),
        network=network,
        engine=engine,
        torch_threads=torch_threads,
        test_images=test_images[-kept:],
        test_labels=test_labels[-kept:],
        held_out=_held_out(images, labels, partition, seed),
    )


@lru_cache(maxsize=2)
def _load(plan: str, device: str) -> tuple[Dataset, list[Tensor]]:
    """The data set of a section [data] in JSON; training and test images and labels as tensors."""
    dataset = load(**json.loads(plan))
    arrays = (*dataset.train(), *dataset.test())
    return dataset, [torch.as_tensor(array, device=device) for array in arrays]


def _held_out(
    images: Tensor, labels: Tensor, partition: Partition, seed: int
) -> tuple[Tensor, Tensor] | None:
    """Up to 2,000 training points that no client ever holds; settings are chosen on these."""
    later = () if partition.later is None else partition.later.indices
    taken = np.concatenate([*partition.indices, *later])
    free = np.setdiff1d(np.arange(len(labels)), taken)
    if len(free) < 200:
        return None
    draw = generator(seed, "held-out points")
    picked = torch.as_tensor(draw.permutation(free)[:2_000], device=labels.device)
    return images[picked], labels[picked]
