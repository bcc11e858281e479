"""Many clients at once: parameters stacked, one batched gradient per step for all of them.

Clients are ordered by how many steps they take, so those that have finished drop off the end
instead of being masked. Within a step, batches of about the same size go together, padded to the
largest of them with weight zero; where samples influence each other (batch norm) only batches of
equal size do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_not
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.draws import generator
from fedsteer.errors import FedsteerError, TrainingFailed
from fedsteer.training.formula import FormulaGradient
from fedsteer.training.local import (
    Job,
    LocalTraining,
    Trained,
    TrainingData,
    augmented,
    batches,
    descend,
)
from fedsteer.training.networks import Network
from fedsteer.training.sequential import Sequential

Integers = NDArray[np.int64]


class StackedGradient(Protocol):
    """Per-client gradients of stacked parameters."""

    pads: bool

    def __call__(
        self, flat: Tensor, images: Tensor, labels: Tensor, weights: Tensor, masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(clients, d) gradients and (clients,) losses."""


@dataclass(frozen=True)
class Order:
    """A job with all it takes, so that jobs of several simulations can be trained together."""

    client: int
    points: Integers
    seed: int
    round: int
    start: Tensor
    correction: Tensor | None
    proximal: float


class Stacked:
    """Train clients together, at most `width` at a time."""

    name = "stacked"

    def __init__(
        self,
        network: Network,
        data: TrainingData,
        how: LocalTraining,
        seed: int,
        gradient: StackedGradient,
        width: int,
        exact: bool = True,
    ) -> None:
        self.network, self.data, self.how, self.seed = network, data, how, seed
        self.gradient, self.width, self.exact = gradient, width, exact

    def train(
        self, model: Tensor, jobs: Sequence[Job], round: int, proximal: float = 0.0
    ) -> Trained:
        """Every job from its start model (default: `model`); `round` keys the random draws."""
        try:
            return self.carry_out(self.orders(model, jobs, round, proximal), model)
        except FedsteerError:
            raise
        except Exception as error:
            # The reference trains the same clients one by one and names the one that fails.
            self.sequential().train(model, jobs, round, proximal)
            raise TrainingFailed(
                f"clients fail when trained together, though none does alone: {error}; "
                "run.engine=sequential trains them so"
            ) from error

    def orders(
        self, model: Tensor, jobs: Sequence[Job], round: int, proximal: float = 0.0
    ) -> list[Order]:
        """The jobs as orders, which any engine of the same network, images and `how` can take."""
        return [
            Order(
                client=job.client,
                points=self.data.clients[job.client],
                seed=self.seed,
                round=round,
                start=model if job.start is None else job.start,
                correction=job.correction,
                proximal=proximal,
            )
            for job in jobs
        ]

    def carry_out(self, orders: Sequence[Order], like: Tensor) -> Trained:
        """Train all orders; `like` gives type and device where there are none."""
        updates = like.new_empty((len(orders), self.network.dim))
        steps, losses = np.zeros(len(orders), np.int64), np.zeros(len(orders))
        schedules = [batches(self.how, o.points, o.seed, o.round, o.client) for o in orders]
        # Longest first; clients of one length ordered by size, so that neighbours batch well.
        order = sorted(
            range(len(orders)), key=lambda i: (-len(schedules[i]), -len(schedules[i][-1]), i)
        )
        for first in range(0, len(order), self.width):
            part = order[first : first + self.width]
            with _products(self.exact):
                ends, means = self._together(
                    [orders[i] for i in part], [schedules[i] for i in part]
                )
            if part == list(range(len(orders))):
                updates = ends  # all of them, in order: nothing to put in place
            else:
                updates[part] = ends
            steps[part] = [len(schedules[i]) for i in part]
            losses[part] = means
        return Trained(updates, steps, losses)

    def _together(
        self, orders: Sequence[Order], schedules: Sequence[list[Integers]]
    ) -> tuple[Tensor, NDArray[np.float64]]:
        how, count, start = self.how, len(orders), orders[0].start
        if all(order.start is start for order in orders):
            starts = start.expand(count, -1)
        else:
            starts = torch.stack([order.start for order in orders])
        corrections = None
        if any(order.correction is not None for order in orders):
            zero = torch.zeros_like(start)
            corrections = torch.stack(
                [zero if order.correction is None else order.correction for order in orders]
            )
        pull = None
        if any(order.proximal for order in orders):
            pull = start.new_tensor([[order.proximal] for order in orders])
        masks = None
        if how.mask_absent_labels:
            masks = torch.stack([self.data.label_mask(order.points) for order in orders])
        flips = []
        if how.augment == "crop-flip":
            flips = [generator(o.seed, "augment", round=o.round, client=o.client) for o in orders]
        weights = starts.clone()
        velocity = torch.zeros_like(weights) if how.momentum else None
        lengths = np.array([len(schedule) for schedule in schedules])
        losses = start.new_zeros(count)
        plain = velocity is None and pull is None and corrections is None and not how.weight_decay
        in_place = self.gradient if plain and isinstance(self.gradient, FormulaGradient) else None
        before: list[Integers] = []
        parts: list[tuple[range, tuple[Tensor, Tensor, Tensor]]] = []
        for step in range(int(lengths.max(initial=0))):
            running = int((lengths > step).sum())
            current = [schedules[i][step] for i in range(running)]
            # Where a batch is all a client has, it comes again every epoch: gather it once.
            if flips or len(before) != running or any(map(is_not, current, before)):
                parts = [
                    (group, self._gather([current[i] for i in group], group, flips))
                    for group in self._groups(current)
                ]
            before = current
            for group, (images, labels, shares) in parts:
                pick = slice(group.start, group.stop)
                mine = None if masks is None else masks[pick]
                given = (weights[pick], images, labels, shares, mine)
                if in_place is not None:
                    losses[pick] += in_place.descend(*given, how.rate)
                    continue
                gradient, loss = self.gradient(*given)
                losses[pick] += loss
                descend(
                    how,
                    weights[pick],
                    gradient,
                    None if velocity is None else velocity[pick],
                    None if pull is None else (pull[pick], starts[pick]),
                    None if corrections is None else corrections[pick],
                )
        return torch.sub(starts, weights, out=weights), losses.double().cpu().numpy() / lengths

    def _groups(self, current: Sequence[Integers]) -> list[range]:
        """Runs of neighbours whose batches are of equal size, or within a factor of two."""
        groups, first = [], 0
        low = high = len(current[0])
        for index in range(1, len(current) + 1):
            size = len(current[index]) if index < len(current) else -1
            low, high = min(low, size), max(high, size)
            if size < 0 or (low * 2 < high if self.gradient.pads else low != high):
                groups.append(range(first, index))
                first, low, high = index, size, size
        return groups

    def _gather(
        self, chosen: Sequence[Integers], group: range, flips: Sequence[np.random.Generator]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(c, b, ...) images, (c, b) labels and weights; padding repeats a point at weight 0."""
        data = self.data
        widest = max(len(batch) for batch in chosen)
        index = np.zeros((len(chosen), widest), np.int64)
        shares = np.zeros((len(chosen), widest), np.float32)
        for row, batch in enumerate(chosen):
            index[row, : len(batch)] = batch
            shares[row, : len(batch)] = 1.0 / len(batch)
        picked = torch.as_tensor(index, device=data.images.device)
        images = data.images.index_select(0, picked.flatten()).unflatten(0, picked.shape)
        if self.how.augment == "crop-flip":
            for row, (client, batch) in enumerate(zip(group, chosen, strict=True)):
                images[row, : len(batch)] = augmented(images[row, : len(batch)], flips[client])
        return images, data.labels[picked], torch.as_tensor(shares, device=data.images.device)

    def sequential(self) -> Sequential:
        """The reference on the same work."""
        return Sequential(self.network, self.data, self.how, self.seed)


@contextmanager
def _products(exact: bool) -> Iterator[None]:
    """Whether matrix products on a GPU are float32 or tf32; rules always get float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = not exact
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
