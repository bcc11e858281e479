"""A client's work with all it takes, so that clients of several simulations can train together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.training.local import Job, Trained, TrainingData


@dataclass(frozen=True)
class Order:
    """A job that no longer depends on whose it is."""

    client: int
    points: NDArray[np.int64]
    seed: int
    round: int
    start: Tensor
    correction: Tensor | None
    proximal: float


@runtime_checkable
class TakesOrders(Protocol):
    """An engine that trains orders of any simulation with the same network, images and training."""

    def orders(
        self, model: Tensor, jobs: Sequence[Job], round: int, proximal: float = 0.0
    ) -> list[Order]:
        """The jobs of its own simulation as orders."""

    def carry_out(self, orders: Sequence[Order], like: Tensor) -> Trained:
        """Train all orders; `like` gives type and device where there are none."""


def make_orders(
    data: TrainingData, seed: int, model: Tensor, jobs: Sequence[Job], round: int, proximal: float
) -> list[Order]:
    """The jobs of a simulation with this data and seed as orders."""
    return [
        Order(
            client=job.client,
            points=data.clients[job.client],
            seed=seed,
            round=round,
            start=model if job.start is None else job.start,
            correction=job.correction,
            proximal=proximal,
        )
        for job in jobs
    ]
