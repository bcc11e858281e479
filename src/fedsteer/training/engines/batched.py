"""Many clients at once: parameters stacked, one batched gradient per step for all of them.

Clients are ordered by how many steps they take, so those that have finished drop off the end
instead of being masked. Within a step, batches of about the same size go together, padded to the
largest of them with weight zero; if samples influence each other (batch norm), only batches of
equal size do. Gradients are taken by formula, without a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.draws import generator
from fedsteer.gpu.precision import precision
from fedsteer.training.engines.base import Engine, torch_threads
from fedsteer.training.engines.dense import DenseTrainer, is_wide
from fedsteer.training.engines.sequential import naming_by_reference
from fedsteer.training.layers.formula import FormulaGradient
from fedsteer.training.layers.known import known_layers
from fedsteer.training.local import (
    PLAIN_SGD,
    LocalTraining,
    Order,
    Trained,
    augmented,
    descend,
    schedule,
)
from fedsteer.training.networks import Network

MOST_NUMBERS = 400_000_000
"""Most parameters stacked at once: with gradients about 3 GB."""

Integers = NDArray[np.int64]


class BatchedEngine(Engine):
    """Trains clients together, at most `width` at a time."""

    name = "batched"
    joins_runs = True

    def __post_init__(self) -> None:
        layers = known_layers(self.network, self.exact)
        assert layers is not None, "`supports` says what this engine can train"
        self.gradient = FormulaGradient(self.network, layers, self.exact)
        self.width = max(1, MOST_NUMBERS // self.network.dim)
        self.dense: DenseTrainer | None = None
        if is_wide(layers) and not self.data.images.is_cuda:
            self.dense = DenseTrainer(layers, self.network.dim, self.data, self.options)

    @classmethod
    def supports(cls, network: Network, options: LocalTraining, device: str) -> str | None:
        """Networks made of known layers."""
        if known_layers(network) is None:
            return "it needs a network made of layers that it knows by formula"
        return super().supports(network, options, device)

    def train_orders(self, orders: Sequence[Order]) -> Trained:
        with naming_by_reference(self, orders):
            if self.dense is None:
                return self._train(orders)
            if self.dense.suits(orders):
                return self.dense.train(orders)
            # More threads would share out parts of a product, and then results would depend on how
            # many there are.
            with torch_threads(1):
                return self._train(orders)

    def _train(self, orders: Sequence[Order]) -> Trained:
        updates = self.no_updates(len(orders))
        steps, losses = np.zeros(len(orders), np.int64), np.zeros(len(orders))
        schedules = [schedule(self.options, o.points, o.seed, o.round, o.client) for o in orders]
        order = longest_first(schedules)
        for first in range(0, len(order), self.width):
            part = order[first : first + self.width]
            plan = Plan([schedules[i] for i in part], updates.device, updates.dtype)
            with precision(self.exact, updates):
                ends, means = self._train_plan([orders[i] for i in part], plan)
            if part == list(range(len(orders))):
                updates = ends  # all of them, in order: nothing to put in place
            else:
                updates[part] = ends
            steps[part] = plan.lengths
            losses[part] = means
        return Trained(updates, steps, losses)

    def _train_plan(
        self, orders: Sequence[Order], plan: Plan
    ) -> tuple[Tensor, NDArray[np.float64]]:
        options, count, start = self.options, len(orders), orders[0].start
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
        if options.mask_absent_labels:
            masks = torch.stack([self.data.label_mask(order.points) for order in orders])
        draws = []
        if options.augment == "crop-flip":
            draws = [generator(o.seed, "augment", round=o.round, client=o.client) for o in orders]
        weights = starts.clone()
        velocity = torch.zeros_like(weights) if options.momentum else None
        losses = start.new_zeros(count)
        plain = all(order.plain for order in orders) and not options.beyond(PLAIN_SGD)
        in_place = plain and not weights.is_cuda
        for step in range(int(plan.lengths.max(initial=0))):
            for group in plan.groups(step, self.gradient.pads):
                pick = slice(group.first, group.last)
                points = plan.points(step, group)
                images = self.data.images.index_select(0, points.flatten())
                images = images.unflatten(0, points.shape)
                for place in range(group.first, group.last) if draws else ():
                    row, size = images[place - group.first], plan.size(step, place)
                    row[:size] = augmented(row[:size], draws[place])
                own_masks = None if masks is None else masks[pick]
                own = weights[pick]
                batch = (own, images, self.data.labels[points], group.shares, own_masks)
                # In place is half the memory traffic of a gradient and a step.
                gradient, loss = self.gradient(*batch, options.rate if in_place else None)
                losses[pick] += loss
                if in_place:
                    continue
                descend(
                    options,
                    own,
                    gradient,
                    None if velocity is None else velocity[pick],
                    None if pull is None else (pull[pick], starts[pick]),
                    None if corrections is None else corrections[pick],
                )
        updates = self.gradient.restore(torch.sub(starts, weights, out=weights))
        return updates, losses.double().cpu().numpy() / plan.lengths


def longest_first(schedules: Sequence[tuple[Integers, Integers]]) -> list[int]:
    """Longest first; clients of one length ordered by size, so that neighbours batch well."""
    lasts = [(-len(sizes), -int(sizes[-1])) for _, sizes in schedules]
    return sorted(range(len(lasts)), key=lambda i: (*lasts[i], i))


@dataclass(frozen=True)
class Group:
    """Neighbours whose batches go together in a step."""

    first: int
    last: int
    shares: Tensor  # (c, widest) weight of each point: 1/batch size, 0 for padding


class Plan:
    """The batches of many clients, longest schedule first, brought to the device once."""

    def __init__(
        self,
        schedules: Sequence[tuple[Integers, Integers]],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.dtype = dtype  # of the shares
        self.lengths = np.array([len(sizes) for _, sizes in schedules], np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)
        self.sizes = np.concatenate([sizes for _, sizes in schedules])
        table = np.zeros((len(self.sizes), max(rows.shape[1] for rows, _ in schedules)), np.int64)
        for start, (rows, _) in zip(self.starts.tolist(), schedules, strict=True):
            table[start : start + len(rows)] = rows[:, :1]
            table[start : start + len(rows), : rows.shape[1]] = rows
        self.table = torch.as_tensor(table, device=device)
        self.rows = torch.as_tensor(self.starts, device=device)
        self._sizes, self._groups = np.zeros(0, np.int64), list[Group]()

    def size(self, step: int, place: int) -> int:
        """How large a client's batch is."""
        return int(self.sizes[self.starts[place] + step])

    def points(self, step: int, group: Group) -> Tensor:
        """(c, widest) the batches of a group; padding repeats a point of the client at weight 0."""
        return self.table[self.rows[group.first : group.last] + step, : group.shares.shape[1]]

    def groups(self, step: int, pads: bool) -> list[Group]:
        """Runs of neighbours with batches of equal size or, if it `pads`, about equal."""
        running = int((self.lengths > step).sum())
        sizes = self.sizes[self.starts[:running] + step]
        if not np.array_equal(sizes, self._sizes):
            self._sizes = sizes
            cuts = [0, *_cuts(sizes.tolist(), pads), running]
            self._groups = [self._group(sizes, *ends) for ends in pairwise(cuts)]
        return self._groups

    def _group(self, sizes: Integers, first: int, last: int) -> Group:
        own = sizes[first:last, None]
        shares = torch.as_tensor((np.arange(own.max()) < own) / own, dtype=self.dtype)
        return Group(first=first, last=last, shares=shares.to(self.table.device))


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
