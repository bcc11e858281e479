"""What local training is, and one step of it.

    w <- w - rate v,   v <- momentum v + gradient
    gradient = grad of the loss + weight_decay w + proximal (w - w_start) + correction

`proximal` (FedProx) and `correction` (SCAFFOLD's c - c_i) come with what the rule asks for. All
engines use the schedule and the step below, so they can only differ in how gradients are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError
from fedsteer.options import check_options, option
from fedsteer.training.networks import Network

AUGMENTATIONS = ("none", "crop-flip")


@dataclass(frozen=True)
class LocalTraining:
    """Plain SGD on a client's own points; batch 0 means all of them at once."""

    epochs: int = option(5, "over the client's points, per round", low=1)
    batch: int = option(64, "points a step; 0: all at once", low=0)
    rate: float = option(0.1, "eta: learning rate of the clients", above=0)
    momentum: float = option(0.0, "of local steps; begins anew every round", low=0, below=1)
    weight_decay: float = option(0.0, "times the weights is added to gradients", low=0)
    mask_absent_labels: bool = option(False, "logits of labels the client lacks are set to 0")
    augment: str = option("none", "or crop-flip", choices=AUGMENTATIONS)
    shuffle: bool = option(True, "a new order every epoch; false: in the order they are stored")

    def __post_init__(self) -> None:
        check_options(self, "training.")


@dataclass(frozen=True)
class TrainingData:
    """Everybody's points: one tensor for all, index arrays per client."""

    images: Tensor  # (n, C, H, W) float32
    labels: Tensor  # (n,) int64
    clients: Sequence[NDArray[np.int64]]  # indices of each client's points
    classes: int

    def label_mask(self, points: NDArray[np.int64]) -> Tensor:
        """(classes,) 1 for labels that occur at these points."""
        mask = torch.zeros(self.classes, device=self.images.device)
        mask[self.labels[torch.as_tensor(points, device=mask.device)]] = 1.0
        return mask


class Job(NamedTuple):
    """One client's order for a round."""

    client: int
    start: Tensor | None = None  # (d,) the model it starts from, where not the global one
    correction: Tensor | None = None  # (d,) added to every gradient


@dataclass(frozen=True)
class Trained:
    """What came back."""

    updates: Tensor  # (m, d) start - end
    steps: NDArray[np.int64]  # (m,) local steps taken
    losses: NDArray[np.float64]  # (m,) mean training loss over the steps


def joined(parts: Sequence[Trained]) -> Trained:
    """The clients of all parts, in order."""
    return Trained(
        torch.cat([part.updates for part in parts]),
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.losses for part in parts]),
    )


@dataclass(eq=False)
class Trainer:
    """What every engine is given."""

    network: Network
    data: TrainingData
    how: LocalTraining
    seed: int
    exact: bool = field(default=True, kw_only=True)  # False: shorter numbers will do on a GPU


def schedule(
    how: LocalTraining, points: NDArray[np.int64], seed: int, round: int, client: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The batches of one client in one round: (steps, widest batch) points and (steps,) sizes.

    Epoch after epoch, no point is ever dropped; a row shorter than the widest is filled with
    the first.
    """
    count = len(points)
    if not count:
        raise ConfigurationError(f"client {client} has no data")
    if how.batch == 0 or how.batch >= count:  # every batch is everything: no order to draw
        return np.tile(points, (how.epochs, 1)), np.full(how.epochs, count)
    draw = generator(seed, "batches", round=round, client=client) if how.shuffle else None
    rows = -(-count // how.batch)
    table = np.full((how.epochs, rows * how.batch), points[0], np.int64)
    for epoch in table:
        epoch[:count] = points if draw is None else draw.permutation(points)
    sizes = np.full(rows, how.batch)
    sizes[-1] = count - (rows - 1) * how.batch
    return table.reshape(-1, how.batch), np.tile(sizes, how.epochs)


def batches(
    how: LocalTraining, points: NDArray[np.int64], seed: int, round: int, client: int
) -> list[NDArray[np.int64]]:
    """The same, one array a step."""
    table, sizes = schedule(how, points, seed, round, client)
    return [row[:size] for row, size in zip(table, sizes, strict=True)]


def descend(
    how: LocalTraining,
    weights: Tensor,
    gradient: Tensor,
    velocity: Tensor | None,
    pull: tuple[float | Tensor, Tensor] | None,
    correction: Tensor | None,
) -> None:
    """One SGD step in place; works on (d,) and on stacked (clients, d) alike."""
    if how.weight_decay:
        gradient.add_(weights, alpha=how.weight_decay)
    if pull is not None:
        gradient.add_((weights - pull[1]) * pull[0])
    if correction is not None:
        gradient.add_(correction)
    if velocity is not None:
        velocity.mul_(how.momentum).add_(gradient)
        gradient = velocity
    weights.add_(gradient, alpha=-how.rate)


def augmented(images: Tensor, draw: np.random.Generator) -> Tensor:
    """Each image shifted by up to four pixels (zeros come in) and flipped with even odds."""
    count, _, height, width = images.shape
    rows, columns = draw.integers(0, 9, (2, count))
    flips = draw.random(count) < 0.5
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    across = np.arange(width)[None] + columns[:, None]
    across[flips] = across[flips][:, ::-1]
    down: Any = np.arange(height)[None] + rows[:, None]
    device = images.device
    sample = torch.arange(count, device=device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=device)[None, :, None, None]
    row = torch.as_tensor(down, device=device)[:, None, :, None]
    column = torch.as_tensor(np.ascontiguousarray(across), device=device)[:, None, None, :]
    return padded[sample, channel, row, column]
