"""Everything of one (experiment, seed) that no rule can change: the same for every rule compared.

Data split, participation, batches and the initial model are functions of the seed alone, so
differences between rules are paired.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer import data as datasets
from fedsteer import participation as attendance
from fedsteer.data import Dataset, Partition
from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError, unknown
from fedsteer.participation import Participation, ProbabilityView, Trace
from fedsteer.simulate.experiment import Data, Experiment, ParticipationPlan, PartitionPlan
from fedsteer.training import (
    Engine,
    Network,
    TrainingData,
    choose_engine,
    make_engine,
    make_network,
)
from fedsteer.training.engines import choose_threads
from fedsteer.training.models import try_out

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """The stage on which rules are compared."""

    experiment: Experiment
    seed: int
    dataset: Dataset
    partition: Partition
    holds: NDArray[np.int64]  # (clients, classes)
    participation: Participation
    reported: Floats | None  # p_i as rules are told
    network: Network
    engine: Engine
    threads: int
    test_images: Tensor
    test_labels: Tensor
    held_out: tuple[Tensor, Tensor] | None  # training points that no client holds
    label_groups: dict[str, list[int]]

    @property
    def clients(self) -> int:
        """N."""
        return len(self.partition.indices)

    @property
    def sizes(self) -> Floats:
        """n_i."""
        return np.array([len(points) for points in self.partition.indices], dtype=np.float64)


def usable_cores() -> int:
    """Those this process may use: in a container fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def build_world(experiment: Experiment, seed: int, everybody: bool = False) -> World:
    """Load, split and set up. `everybody`: full participation instead of the experiment's."""
    device = experiment.run.device
    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigurationError(f"device {device!r} was asked for, but there is no CUDA here")
    dataset = _dataset(experiment.data)
    partition = _partition(experiment.partition, dataset, seed)
    clients = len(partition.indices)
    present = make_participation(experiment.participation, clients, seed)
    view = ProbabilityView(
        kind=experiment.participation.reported,  # type: ignore[arg-type]
        factor=experiment.participation.wrong_factor,
        noise=experiment.participation.wrong_noise,
        seed=seed,
    )
    reported = view.of(present)
    if everybody:
        present, reported = attendance.Everybody(clients), np.ones(clients)
    network = make_network(
        experiment.model.name, dataset.shape, dataset.classes, experiment.model.options
    )
    network.module.to(device)
    threads = experiment.run.threads or choose_threads(network, usable_cores())
    torch.set_num_threads(threads)
    images, labels = _tensors(experiment.data, "train", device)
    if ":" in experiment.model.name:  # not one of ours
        try_out(experiment.model.name, network, images, dataset.classes)
    test_images, test_labels = _tensors(experiment.data, "test", device)
    kept = max(1, round(experiment.run.test_share * len(test_labels)))
    name, exact = experiment.run.engine, experiment.run.precision == "float32"
    engine = make_engine(
        choose_engine(network, device, exact) if name == "auto" else name,
        network,
        TrainingData(images, labels, partition.indices, dataset.classes),
        experiment.training,
        seed,
        exact=exact,
    )
    return World(
        experiment=experiment,
        seed=seed,
        dataset=dataset,
        partition=partition,
        holds=datasets.who_holds_what(partition, dataset.train_labels),
        participation=present,
        reported=reported,
        network=network,
        engine=engine,
        threads=threads,
        test_images=test_images[len(test_labels) - kept :],
        test_labels=test_labels[len(test_labels) - kept :],
        held_out=_held_out(images, labels, partition, seed),
        label_groups=_label_groups(experiment.partition, dataset.classes),
    )


def _dataset(plan: Data) -> Dataset:
    known = inspect.signature(datasets.made).parameters
    for option, value in plan.options.items():
        if plan.name != "made":
            raise ConfigurationError("data.options are for the made-up data set only")
        if option not in known:
            raise unknown("option of the made-up data", option, known)
        kinds = (int, float) if option == "noise" else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds):
            words = "a number" if float in kinds else "a whole number"
            raise ConfigurationError(f"data.options.{option} must be {words}, not {value!r}")
    return _cached_dataset(plan.name, plan.folder, tuple(sorted(plan.options.items())))


@lru_cache(maxsize=2)
def _cached_dataset(name: str, folder: str | None, options: tuple[tuple[str, Any], ...]) -> Dataset:
    if name == "made":
        return datasets.made(**dict(options))
    return datasets.load(name, folder=folder)


@lru_cache(maxsize=4)
def _cached_tensors(
    name: str, folder: str | None, options: tuple[tuple[str, Any], ...], part: str, device: str
) -> tuple[Tensor, Tensor]:
    dataset = _cached_dataset(name, folder, options)
    images, labels = dataset.train() if part == "train" else dataset.test()
    return torch.as_tensor(images, device=device), torch.as_tensor(labels, device=device)


def _tensors(plan: Data, part: str, device: str) -> tuple[Tensor, Tensor]:
    options = tuple(sorted(plan.options.items()))
    return _cached_tensors(plan.name, plan.folder, options, part, device)


def _partition(plan: PartitionPlan, dataset: Dataset, seed: int) -> Partition:
    labels, clients = dataset.train_labels, plan.clients
    shared: dict[str, Any] = {"points": plan.points, "seed": seed, "replace": plan.replace}
    if plan.kind == "label-groups":
        return datasets.label_groups(
            labels, clients, plan.gamma, labels_per_client=plan.labels_per_client, **shared
        )
    if plan.kind == "dirichlet":
        return datasets.dirichlet(labels, clients, plan.alpha, **shared)
    if plan.kind == "shards":
        return datasets.shards(labels, clients, plan.shards_per_client, **shared)
    if plan.kind == "iid":
        return datasets.iid(labels, clients, **shared)
    raise unknown("partition", plan.kind, ("label-groups", "dirichlet", "shards", "iid"))


def make_participation(plan: ParticipationPlan, clients: int, seed: int) -> Participation:
    """Who is there in which round."""
    kinds = ("groups", "bernoulli", "markov", "diurnal", "trace", "everybody")
    if plan.kind not in kinds:
        raise unknown("participation", plan.kind, kinds)
    if plan.kind == "everybody":
        return attendance.Everybody(clients)
    if plan.kind == "trace":
        if plan.trace is None:
            raise ConfigurationError("participation.trace must name a file")
        trace = _trace(plan.trace, plan.round_seconds, *_last_change(plan.trace))
        return trace if trace.clients == clients else trace.sample(clients, seed)
    if plan.probabilities is None:
        odds = attendance.group_probabilities(clients, plan.weak, plan.powerful, plan.share, seed)
    else:
        odds = np.asarray(plan.probabilities, dtype=np.float64)
        if odds.shape != (clients,):
            raise ConfigurationError(
                f"participation.probabilities has {len(odds)} entries for {clients} clients"
            )
    if plan.kind == "markov":
        return attendance.Markov(odds, plan.mean_on, seed=seed)
    if plan.kind == "diurnal":
        return attendance.Diurnal(odds, plan.amplitude, plan.period, plan.phases, seed=seed)  # type: ignore[arg-type]
    return attendance.Bernoulli(odds, seed=seed)


@lru_cache(maxsize=2)
def _trace(path: str, round_seconds: float, *change: int) -> Trace:
    """Read once, until the file is another one: every run of a comparison asks."""
    return attendance.read_trace(path, round_seconds=round_seconds)


def _last_change(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:  # reading says what is wrong
        return ()
    return found.st_mtime_ns, found.st_size


def _held_out(
    images: Tensor, labels: Tensor, partition: Partition, seed: int
) -> tuple[Tensor, Tensor] | None:
    """Up to 2,000 training points that no client holds: settings are chosen on these."""
    free = np.setdiff1d(np.arange(len(labels)), np.concatenate(partition.indices))
    if len(free) < 200:
        return None
    draw = generator(seed, "held-out points")
    picked = torch.as_tensor(draw.permutation(free)[:2_000], device=labels.device)
    return images[picked], labels[picked]


def _label_groups(plan: PartitionPlan, classes: int) -> dict[str, list[int]]:
    if plan.kind != "label-groups":
        return {}
    half = classes // 2
    return {"common": list(range(half)), "rare": list(range(half, classes))}
