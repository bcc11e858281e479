"""The options of local training, its batches, and one step.

    w <- w - rate v,   v <- momentum v + gradient
    gradient = grad of the loss + weight_decay w + proximal (w - w_start) + correction

`proximal` (FedProx) and `correction` (SCAFFOLD's c - c_i) come with a client's order. Every engine
uses the schedule and the step below, so engines differ only in how they take gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.draws import generator
from fedsteer.options import check_options, option


@dataclass(frozen=True)
class LocalTraining:
    """Plain SGD on a client's own points; batch 0 means all of them at once."""

    epochs: int = option(5, "over the client's points, per round", low=1)
    batch: int = option(64, "points a step; 0: all at once", low=0)
    rate: float = option(0.1, "eta: learning rate of the clients", above=0)
    momentum: float = option(0.0, "of local steps; starts anew every round", low=0, below=1)
    weight_decay: float = option(0.0, "times the weights, added to gradients", low=0)
    mask_absent_labels: bool = option(False, "logits of labels the client lacks are set to 0")
    augment: str = option("none", "or crop-flip", choices=("none", "crop-flip"))
    shuffle: bool = option(True, "a new order every epoch; false: in the order they are stored")

    def __post_init__(self) -> None:
        check_options(self, "training.")

    def steps(self, points: int) -> int:
        """How many steps a client with that many points takes."""
        return self.epochs * -(-points // (self.batch or points))

    def beyond(self, known: Collection[str]) -> list[str]:
        """Options outside `known` that do not have their defaults."""
        return [
            field.name
            for field in fields(self)
            if field.name not in known and getattr(self, field.name) != field.default
        ]


PLAIN_SGD = frozenset({"epochs", "batch", "rate", "shuffle", "augment", "mask_absent_labels"})
"""Options under which a step is w <- w - rate gradient."""
SGD = PLAIN_SGD | {"momentum", "weight_decay"}
"""Options that `descend` knows. A new option belongs here once every fast engine honours it."""


@dataclass(frozen=True)
class TrainingData:
    """The points of all clients; an order says which of them are the client's own."""

    images: Tensor  # (n, C, H, W) float32
    labels: Tensor  # (n,) int64
    classes: int

    def label_mask(self, points: NDArray[np.int64]) -> Tensor:
        """(classes,) 1 for labels that occur at these points."""
        mask = torch.zeros(self.classes, device=self.images.device)
        mask[self.labels[torch.as_tensor(points, device=mask.device)]] = 1.0
        return mask


@dataclass(frozen=True, eq=False)
class Order:
    """The task of one client in one round.

    It has everything that differs between clients, so an engine can train clients of several
    simulations at once if these share network, images and options.
    """

    client: int
    points: NDArray[np.int64]  # indices of its images
    seed: int  # seed, round and client key the random draws
    round: int
    start: Tensor  # (d,) the model it starts from
    correction: Tensor | None = None  # (d,) added to every gradient
    proximal: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether nothing is added to the gradient of the loss."""
        return self.correction is None and not self.proximal

    def draw(self, purpose: str) -> np.random.Generator:
        """The client's draws in this round."""
        return generator(self.seed, purpose, round=self.round, client=self.client)


@dataclass(frozen=True)
class Trained:
    """The results, one row per order."""

    updates: Tensor  # (m, d) start - end
    steps: NDArray[np.int64]  # (m,) local steps taken
    losses: NDArray[np.float64]  # (m,) mean training loss over the steps

    def part(self, rows: slice) -> Trained:
        """Some of the rows."""
        return Trained(self.updates[rows], self.steps[rows], self.losses[rows])


def schedule(options: LocalTraining, order: Order) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The batches of one client in one round: (steps, widest batch) points and (steps,) sizes.

    No point is dropped in any epoch; a row shorter than the widest is padded with the first point.
    """
    points, count = order.points, len(order.points)
    batch = min(options.batch or count, count)
    rows = -(-count // batch)
    # With one batch of everything there is nothing to draw.
    draw = order.draw("batches") if options.shuffle and rows > 1 else None
    table = np.full((options.epochs, rows * batch), points[0], np.int64)
    for epoch in table:
        epoch[:count] = points if draw is None else draw.permutation(points)
    sizes = np.full(rows, batch)
    sizes[-1] = count - (rows - 1) * batch
    return table.reshape(-1, batch), np.tile(sizes, options.epochs)


def descend(
    options: LocalTraining,
    weights: Tensor,
    gradient: Tensor,
    velocity: Tensor | None,
    pull: tuple[float | Tensor, Tensor] | None,
    correction: Tensor | None,
) -> None:
    """One SGD step in place, for (d,) and for stacked (clients, d) alike."""
    if options.weight_decay:
        gradient.add_(weights, alpha=options.weight_decay)
    if pull is not None:
        gradient.add_((weights - pull[1]) * pull[0])
    if correction is not None:
        gradient.add_(correction)
    if velocity is not None:
        velocity.mul_(options.momentum).add_(gradient)
        gradient = velocity
    weights.add_(gradient, alpha=-options.rate)


class LocalRun:
    """The training of one client, for engines that train clients one by one."""

    def __init__(
        self,
        data: TrainingData,
        options: LocalTraining,
        order: Order,
        weights: Tensor | None = None,
    ) -> None:
        """`weights` is memory to train in; by default a new copy of the order's model."""
        self.data, self.options, self.order = data, options, order
        self.weights = order.start.clone() if weights is None else weights.copy_(order.start)
        self.velocity = torch.zeros_like(order.start) if options.momentum else None
        self.mask = data.label_mask(order.points) if options.mask_absent_labels else None
        self.pull = (order.proximal, order.start) if order.proximal else None
        table, sizes = schedule(options, order)
        self.points, self.sizes = torch.as_tensor(table, device=data.images.device), sizes.tolist()

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels, step by step."""
        draw = self.order.draw("augment")
        for row, size in zip(self.points, self.sizes, strict=True):
            points = row[:size]
            images = self.data.images.index_select(0, points)
            if self.options.augment == "crop-flip":
                images = augmented(images, draw)
            yield images, self.data.labels[points]

    def descend(self, gradient: Tensor) -> None:
        """One step; overwrites `gradient`."""
        descend(
            self.options, self.weights, gradient, self.velocity, self.pull, self.order.correction
        )


def augmented(images: Tensor, draw: np.random.Generator) -> Tensor:
    """Each image shifted by up to four pixels (zeros come in) and flipped with even odds."""
    count, channels, height, width = images.shape
    rows, columns = draw.integers(0, 9, (2, count))
    flips = draw.random(count) < 0.5
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    across = np.arange(width) + columns[:, None]
    across[flips] = across[flips, ::-1]
    places = (
        np.arange(count)[:, None, None, None],
        np.arange(channels)[:, None, None],
        (np.arange(height) + rows[:, None])[:, None, :, None],
        across[:, None, None],
    )
    return padded[tuple(torch.as_tensor(place, device=images.device) for place in places)]
