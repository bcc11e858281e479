"""The options of local training, its batches, and one step.

    w <- w - rate v,   v <- momentum v + gradient
    gradient = grad of the loss + weight_decay w + proximal (w - w_start) + correction

`proximal` (FedProx) and `correction` (SCAFFOLD's c - c_i) come with a client's order. Every engine
uses the schedule and the step below, so engines differ only in how they take gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
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
"""Options that `Descent` knows. A new option belongs here once every fast engine honours it."""


@dataclass(frozen=True)
class TrainingData:
    """The points of all clients; an order says which of them are the client's own."""

    images: Tensor  # (n, C, H, W) float32
    labels: Tensor  # (n,) int64
    classes: int

    def batches(self, options: LocalTraining, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        """The images and labels of one client, step by step."""
        table, sizes = order.schedule(options)
        draw = order.draw("augment")
        places = torch.as_tensor(table, device=self.images.device)
        for row, size in zip(places, sizes.tolist(), strict=True):
            images = self.images.index_select(0, row[:size])
            if options.augment == "crop-flip":
                images = augmented(images, draw)
            yield images, self.labels[row[:size]]

    def label_masks(self, options: LocalTraining, orders: Sequence[Order]) -> Tensor | None:
        """(clients, classes) 1 for labels that a client has, if it masks the others."""
        if not options.mask_absent_labels:
            return None
        masks = torch.zeros(len(orders), self.classes, device=self.images.device)
        for mask, order in zip(masks, orders, strict=True):
            mask[self.labels[torch.as_tensor(order.points, device=mask.device)]] = 1.0
        return masks


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

    def schedule(self, options: LocalTraining) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The batches of this round: (steps, widest batch) points and (steps,) sizes.

        No point is dropped in any epoch; a row shorter than the widest is padded with the first
        point.
        """
        points, count = self.points, len(self.points)
        batch = min(options.batch or count, count)
        rows = -(-count // batch)
        # With one batch of everything there is nothing to draw.
        draw = self.draw("batches") if options.shuffle and rows > 1 else None
        table = np.full((options.epochs, rows * batch), points[0], np.int64)
        for epoch in table:
            epoch[:count] = points if draw is None else draw.permutation(points)
        sizes = np.full(rows, batch)
        sizes[-1] = count - (rows - 1) * batch
        return table.reshape(-1, batch), np.tile(sizes, options.epochs)


@dataclass(frozen=True)
class Trained:
    """The results, one row per order."""

    updates: Tensor  # (m, d) start - end
    steps: NDArray[np.int64]  # (m,) local steps taken
    losses: NDArray[np.float64]  # (m,) mean training loss over the steps

    def part(self, rows: slice) -> Trained:
        """Some of the rows."""
        return Trained(updates=self.updates[rows], steps=self.steps[rows], losses=self.losses[rows])


class Descent:
    """The (clients, d) weights of clients in training, and what a step adds to their gradients.

    arrange   brings (clients, d) vectors into the order of the engine's weights
    memory    where to train; by default in new memory
    """

    def __init__(
        self,
        options: LocalTraining,
        orders: Sequence[Order],
        arrange: Callable[[Tensor], Tensor] = lambda flat: flat,
        memory: Tensor | None = None,
    ) -> None:
        start = orders[0].start
        shared = all(order.start is start for order in orders)
        starts = start[None] if shared else torch.stack([order.start for order in orders])
        self.options = options
        self.starts = arrange(starts).expand(len(orders), -1)
        self.weights = self.starts.clone() if memory is None else memory.copy_(self.starts)
        self.velocity = torch.zeros_like(self.weights) if options.momentum else None
        self.proximal = self.corrections = None
        if any(order.proximal for order in orders):
            self.proximal = start.new_tensor([[order.proximal] for order in orders])
        if any(order.correction is not None for order in orders):
            zero = torch.zeros_like(start)
            given = [zero if order.correction is None else order.correction for order in orders]
            self.corrections = arrange(torch.stack(given))

    def step(self, gradient: Tensor, pick: slice = slice(None)) -> None:
        """One SGD step of the clients in `pick`; overwrites `gradient`."""
        options, weights = self.options, self.weights[pick]
        if options.weight_decay:
            gradient.add_(weights, alpha=options.weight_decay)
        if self.proximal is not None:
            gradient.add_((weights - self.starts[pick]) * self.proximal[pick])
        if self.corrections is not None:
            gradient.add_(self.corrections[pick])
        if self.velocity is not None:
            gradient = self.velocity[pick].mul_(options.momentum).add_(gradient)
        weights.add_(gradient, alpha=-options.rate)

    def update(self) -> Tensor:
        """start - end, in the place of the weights."""
        return torch.sub(self.starts, self.weights, out=self.weights)


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
