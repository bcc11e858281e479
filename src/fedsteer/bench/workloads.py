"""Three workloads that every simulator can do in exactly the same way.

Plain SGD on batches in stored order, no dropout, equally many points per client and a server rate
of 1: the new model is the mean of the local ones, so final weights can be compared.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.data import made
from fedsteer.draws import generator

if TYPE_CHECKING:
    from fedsteer.training import Network

ROUNDS = 2_000
"""Cohorts are drawn for this many rounds, then they repeat."""


@dataclass(frozen=True)
class Workload:
    """One federated task."""

    key: str
    title: str
    model: str  # a name or an import path, for `make_network`
    batch: int
    shape: tuple[int, int, int]  # channels, height, width
    classes: int = 10
    clients: int = 100
    points: int = 100
    cohort: int = 10
    epochs: int = 1
    rate: float = 0.1

    @property
    def data(self) -> dict[str, Any]:
        """Options of the made-up data set; clients share points if they need more than 10,000."""
        channels, side, _ = self.shape
        points = min(self.clients * self.points, 10_000)
        sizes = {"classes": self.classes, "side": side, "channels": channels, "points": points}
        return sizes | {"noise": 0.3}

    def network(self) -> Network:
        """Its network. Nothing else in this file needs torch."""
        from fedsteer.training import make_network

        return make_network(self.model, self.shape, self.classes, {})


_listed = tomllib.loads((files("fedsteer.bench") / "workloads.toml").read_text(encoding="utf-8"))
WORKLOADS = {
    key: Workload(**options | {"key": key, "shape": tuple(options["shape"])})
    for key, options in _listed.items()
}


@dataclass(frozen=True)
class Work:
    """A workload with its data: the same points, cohorts and initial weights for every side."""

    workload: Workload
    images: NDArray[np.float32]  # (n, channels, height, width), from 0 to 1
    labels: NDArray[np.int64]
    cohorts: NDArray[np.int64]  # (rounds, cohort), each in ascending order
    initial: NDArray[np.float32]  # (d,) in torch's order

    def cohort(self, round: int) -> list[int]:
        """Who trains in a round, counted from 0."""
        return [int(client) for client in self.cohorts[round % len(self.cohorts)]]

    def own(self, client: int) -> slice:
        """The points of a client, one client after the other, from the start again at the end."""
        first = client * self.workload.points % len(self.labels)
        return slice(first, first + self.workload.points)


def make_work(workload: Workload) -> Work:
    """The data, cohorts and initial weights of a workload: the same every time."""
    images, labels = made(**workload.data).train()
    draws = (generator(0, "bench cohort", round=round) for round in range(ROUNDS))
    cohorts = [draw.choice(workload.clients, workload.cohort, replace=False) for draw in draws]
    return Work(
        workload=workload,
        images=images,
        labels=labels,
        cohorts=np.sort(cohorts, axis=1),
        initial=workload.network().initial(0).numpy(),
    )
