"""Many clients at once: parameters stacked, one batched gradient per step for all of them.

Clients are ordered by how many steps they take, so those that have finished drop off the end
instead of being masked. Within a step, batches of about the same size go together, padded to the
largest of them with weight zero; where samples influence each other (batch norm) only batches of
equal size do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.draws import generator
from fedsteer.gpu.precision import precision
from fedsteer.training.formula import FormulaGradient
from fedsteer.training.local import (
    Trained,
    augmented,
    descend,
    schedule,
)
from fedsteer.training.orders import Order, Together
from fedsteer.training.planned import Planned, longest_first
from fedsteer.training.pointwise import Pointwise
from fedsteer.training.threaded import using


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


@dataclass(eq=False)
class Stacked(Together):
    """Train clients together, at most `width` at a time."""

    name: ClassVar[str] = "stacked"
    gradient: StackedGradient
    width: int
    pointwise: Pointwise | None = None  # where that is a way to train some of them

    def carry_out(self, orders: Sequence[Order], like: Tensor) -> Trained:
        """Train all orders; `like` gives type and device where there are none."""
        if self.pointwise is None:
            return self._stacked(orders, like)
        if self.pointwise.suits(orders):
            return self.pointwise.carry_out(orders)
        # One thread whatever `run.threads` says: more would share out parts of a product, and a
        # result must not depend on how many threads there were.
        with using(1):
            return self._stacked(orders, like)

    def _stacked(self, orders: Sequence[Order], like: Tensor) -> Trained:
        updates = like.new_empty((len(orders), self.network.dim))
        steps, losses = np.zeros(len(orders), np.int64), np.zeros(len(orders))
        schedules = [schedule(self.how, o.points, o.seed, o.round, o.client) for o in orders]
        order = longest_first(schedules)
        for first in range(0, len(order), self.width):
            part = order[first : first + self.width]
            planned = Planned([schedules[i] for i in part], like.device, like.dtype)
            with precision(self.exact, like):
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
