"""Small training data with clients of very different sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.training import Order, TrainingData

CLASSES = 4
SKEWED = (1, 2, 3, 5, 8, 13, 21, 40)


@dataclass(frozen=True)
class FederatedData(TrainingData):
    """Training data with the indices of every client's points."""

    clients: Sequence[NDArray[np.int64]] = ()

    def orders(
        self,
        model: Tensor,
        clients: Iterable[int] | None = None,
        seed: int = 5,
        round: int = 3,
        proximal: float = 0.0,
    ) -> list[Order]:
        """Orders that start from the model, for all clients by default."""
        return [
            Order(
                client=client,
                points=self.clients[client],
                seed=seed,
                round=round,
                start=model,
                proximal=proximal,
            )
            for client in (range(len(self.clients)) if clients is None else clients)
        ]


def training_data(
    shape: tuple[int, int, int] = (1, 8, 8), sizes: Sequence[int] = SKEWED, seed: int = 0
) -> FederatedData:
    """Random images; a client holds three of the four labels at most."""
    draw = np.random.default_rng(seed)
    images = draw.random((sum(sizes), *shape), dtype=np.float32)
    order = draw.permutation(sum(sizes))
    clients = np.split(order, np.cumsum(sizes)[:-1])
    labels = np.zeros(sum(sizes), np.int64)
    for client, points in enumerate(clients):
        labels[points] = (client + draw.integers(0, CLASSES - 1, len(points))) % CLASSES
    return FederatedData(
        images=torch.tensor(images), labels=torch.tensor(labels), classes=CLASSES, clients=clients
    )
