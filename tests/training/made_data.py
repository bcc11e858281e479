"""Small training data with clients of very different sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedsteer.training import TrainingData

CLASSES = 4
SKEWED = (1, 2, 3, 5, 8, 13, 21, 40)


def training_data(
    shape: tuple[int, int, int] = (1, 8, 8), sizes: Sequence[int] = SKEWED, seed: int = 0
) -> TrainingData:
    """Random images; a client holds three of the four labels at most."""
    draw = np.random.default_rng(seed)
    images = draw.random((sum(sizes), *shape), dtype=np.float32)
    order = draw.permutation(sum(sizes))
    clients = np.split(order, np.cumsum(sizes)[:-1])
    labels = np.zeros(sum(sizes), np.int64)
    for client, points in enumerate(clients):
        labels[points] = (client + draw.integers(0, CLASSES - 1, len(points))) % CLASSES
    return TrainingData(torch.tensor(images), torch.tensor(labels), clients, CLASSES)
