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
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.draws import generator
from fedsteer.training.formula import FormulaGradient
from fedsteer.training.local import (
    LocalTraining,
    Trained,
    TrainingData,
    augmented,
    descend,
    schedule,
)
from fedsteer.training.networks import Network
from fedsteer.training.orders import Order, Together

Integers = NDArray[np.int64]


class StackedGradient(Protocol):
    """Per-client gradients of stacked parameters."""

    pads: bool

    def arrange(self, flat: Tensor) -> Tensor:
        """(c, d) stacked parameters in the order that `__call__` wants."""

    def restore(self, flat: Tensor) -> Tensor:
        """The inverse of `arrange`."""

    def __call__(
        self, flat: Tensor, images: Tensor, labels: Tensor, weights: Tensor, masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(clients, d) gradients and (clients,) losses."""


class Stacked(Together):
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
        super().__init__(network, data, how, seed, exact)
        self.gradient, self.width = gradient, width

    def carry_out(self, orders: Sequence[Order], like: Tensor) -> Trained:
        """Train all orders; `like` gives type and device where there are none."""
        updates = like.new_empty((len(orders), self.network.dim))
        steps, losses = np.zeros(len(orders), np.int64), np.zeros(len(orders))
        schedules = [schedule(self.how, o.points, o.seed, o.round, o.client) for o in orders]
        # Longest first; clients of one length ordered by size, so that neighbours batch well.
        order = sorted(
            range(len(orders)), key=lambda i: (-len(schedules[i][1]), -schedules[i][1][-1], i)
        )
        for first in range(0, len(order), self.width):
            part = order[first : first + self.width]
            planned = Planned([schedules[i] for i in part], like.device)
            with _products(self.exact):
                ends, means = self._together([orders[i] for i in part], planned)
            if part == list(range(len(orders))):
                updates = ends  # all of them, in order: nothing to put in place
            else:
                updates[part] = ends
            steps[part] = planned.lengths
            losses[part] = means
        return Trained(updates, steps, losses)

    def _together(
        self, orders: Sequence[Order], planned: Planned
    ) -> tuple[Tensor, NDArray[np.float64]]:
        how, count, start = self.how, len(orders), orders[0].start
        if all(order.start is start for order in orders):
            starts = self.gradient.arrange(start[None]).expand(count, -1)
        else:
            starts = self.gradient.arrange(torch.stack([order.start for order in orders]))
        corrections = None
        if any(order.correction is not None for order in orders):
            zero = torch.zeros_like(start)
            corrections = self.gradient.arrange(
                torch.stack([zero if o.correction is None else o.correction for o in orders])
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
        losses = start.new_zeros(count)
        plain = velocity is None and pull is None and corrections is None and not how.weight_decay
        in_place = self.gradient if plain and isinstance(self.gradient, FormulaGradient) else None
        for step in range(int(planned.lengths.max(initial=0))):
            for group in planned.groups(step, self.gradient.pads):
                pick = slice(group.first, group.last)
                points = planned.points(step, group)
                images = self.data.images.index_select(0, points.flatten())
                images = images.unflatten(0, points.shape)
                for place in range(group.first, group.last) if flips else ():
                    row, size = images[place - group.first], planned.size(step, place)
                    row[:size] = augmented(row[:size], flips[place])
                mine = None if masks is None else masks[pick]
                given = (weights[pick], images, self.data.labels[points], group.shares, mine)
                if in_place is not None and not weights.is_cuda:
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
        updates = self.gradient.restore(torch.sub(starts, weights, out=weights))
        return updates, losses.double().cpu().numpy() / planned.lengths


@dataclass(frozen=True)
class Group:
    """Neighbours whose batches go together in a step."""

    first: int
    last: int
    widest: int
    shares: Tensor  # (c, widest) weight of each point: 1/batch size, 0 for padding


class Planned:
    """The batches of many clients, longest schedule first, brought to the device once."""

    def __init__(
        self, schedules: Sequence[tuple[Integers, Integers]], device: torch.device
    ) -> None:
        self.lengths = np.array([len(sizes) for _, sizes in schedules], np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)
        self.sizes = np.concatenate([sizes for _, sizes in schedules])
        table = np.zeros((len(self.sizes), max(rows.shape[1] for rows, _ in schedules)), np.int64)
        for start, (rows, _) in zip(self.starts.tolist(), schedules, strict=True):
            table[start : start + len(rows), : rows.shape[1]] = rows
        self.table = torch.as_tensor(table, device=device)
        self.rows = torch.as_tensor(self.starts, device=device)
        self._sizes, self._groups = np.zeros(0, np.int64), list[Group]()

    def size(self, step: int, place: int) -> int:
        """How large a client's batch is."""
        return int(self.sizes[self.starts[place] + step])

    def points(self, step: int, group: Group) -> Tensor:
        """(c, widest) the batches of a group; padding repeats point 0 at weight 0."""
        rows = self.rows[group.first : group.last] + step
        return self.table[rows, : group.widest]

    def groups(self, step: int, pads: bool) -> list[Group]:
        """Runs of neighbours with batches of equal size or, where it `pads`, about equal."""
        running = int((self.lengths > step).sum())
        sizes = self.sizes[self.starts[:running] + step]
        if not np.array_equal(sizes, self._sizes):
            self._sizes = sizes
            cuts = [0, *_cuts(sizes.tolist(), pads), running]
            self._groups = [self._group(sizes, *ends) for ends in pairwise(cuts)]
        return self._groups

    def _group(self, sizes: Integers, first: int, last: int) -> Group:
        own = sizes[first:last, None]
        widest = int(own.max())
        shares = ((np.arange(widest) < own) / own).astype(np.float32)
        return Group(first, last, widest, torch.as_tensor(shares, device=self.table.device))


def _cuts(sizes: Sequence[int], pads: bool) -> list[int]:
    """Where sizes differ from those before: at all, or by more than a factor of two."""
    cuts = []
    low = high = sizes[0]
    for index, size in enumerate(sizes):
        low, high = min(low, size), max(high, size)
        if low * 2 < high if pads else low != high:
            cuts.append(index)
            low = high = size
    return cuts


@contextmanager
def _products(exact: bool) -> Iterator[None]:
    """Whether matrix products on a GPU are float32 or tf32; rules always get float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = not exact
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
