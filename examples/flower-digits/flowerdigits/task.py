"""Model, data, participation and training, independent of Flower and of any rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from fedsteer.data import LabelGroups, digits
from fedsteer.draws import generator
from fedsteer.participation import GroupsOptions


def make_model(seed: int = 0) -> nn.Module:
    """64 pixels, 64 hidden units, 10 digits."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@cache
def partitions(clients: int, gamma: float, points: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Images and labels of every client: common digits for most, rare ones for a few."""
    images, labels = digits().train()
    options = LabelGroups(clients=clients, gamma=gamma, points=points)
    split = options.divide(digits().train_labels, seed)
    flat = images.reshape(len(images), -1)
    return [
        (torch.as_tensor(flat[rows]), torch.as_tensor(np.asarray(labels)[rows]))
        for rows in split.indices
    ]


def is_there(
    partition: int, number: int, clients: int, weak: float, powerful: float, seed: int
) -> bool:
    """Draw with the client's probability; a function of (seed, round, client)."""
    odds = GroupsOptions(weak=weak, powerful=powerful).long_run(clients, seed)
    draw = generator(seed, "is there", round=number, client=partition)
    return bool(draw.random() < odds[partition])


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epochs: int,
    batch: int,
    rate: float,
    seed: int,
    penalty: Callable[[], Tensor | float],
    correct: Callable[[], None],
) -> tuple[float, int]:
    """SGD; the mean loss and the number of steps.

    `penalty` is added to the loss of every step, `correct` may change the gradients before it.
    """
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    shuffle = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=shuffle).split(batch):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            (loss + penalty()).backward()
            correct()
            optimiser.step()
            losses.append(loss.item())
    return sum(losses) / len(losses), len(losses)


@torch.no_grad()
def test(model: nn.Module) -> tuple[float, float]:
    """Accuracy and loss on the half of the digits that no client holds."""
    images, labels = digits().test()
    scores = model(torch.as_tensor(images.reshape(len(images), -1)))
    truth = torch.as_tensor(labels)
    right = (scores.argmax(1) == truth).float().mean()
    return right.item(), nn.functional.cross_entropy(scores, truth).item()
