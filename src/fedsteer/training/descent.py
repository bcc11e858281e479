"""The steps of stacked clients whose first layer is a combination of their points.

What a step needs of the first layer are the outputs of its batch. These are the outputs at the
start, less the batch's products with all points times what each of those gave back (`pointwise`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.training.upper import Upper
from fedsteer.training.workspace import Batch, Workspace


@dataclass
class Descent:
    """The steps of stacked clients."""

    room: Workspace
    labels: Tensor  # (clients, 1, points)
    masks: Tensor | None  # (clients, classes, 1)
    upper: Upper
    moved: bool = False  # whether anything was given yet

    def epoch(self, places: Tensor | None) -> NDArray[np.float64]:
        """All batches once, points in the order of `places`; (clients,) rate times the losses."""
        room, labels = self.room, self.labels
        if places is not None:
            labels = labels.gather(2, places.unsqueeze(1))
        room.hits.zero_().scatter_(1, labels, room.negated)
        seen = []
        for batch, add in self._batches(places):
            values = batch.outputs
            if self.moved:
                values = torch.baddbmm(values, batch.across, batch.given, alpha=-1)
            logits = self._masked(self.upper.forward(values))
            seen.append(logits)
            back = torch.addcmul(batch.hits, torch.softmax(logits, dim=1), batch.weights)
            given = self.upper.descend(self._masked(back), None if add else batch.into)
            if add is not None:
                add(batch.into, given)
            self.moved = True
        odds = torch.log_softmax(torch.cat(seen, dim=2), dim=1)
        by_client = odds.flatten(1).numpy(), room.hit_by_client
        losses: NDArray[np.float64] = np.vecdot(*by_client, dtype=np.float64)
        return losses

    def _batches(
        self, places: Tensor | None
    ) -> Iterator[tuple[Batch, Callable[..., object] | None]]:
        """Batches, and how to add what they give back to what is there; None: nothing is yet."""
        room = self.room
        if places is None and not self.moved:
            return ((batch, None) for batch in room.first)
        if places is None:
            return ((b, Tensor.add_) for b in room.batches(room.outputs, room.products, room.given))
        if not self.moved:
            room.given.zero_()
        clients, most = places.shape
        into = places + torch.arange(0, clients * most, most).unsqueeze(1)
        outputs, products = _reordered(room.outputs, into), _reordered(room.products, into)
        given = room.given.flatten(0, 1)

        def add(rows: Tensor, back: Tensor) -> None:
            given.index_add_(0, rows.flatten(), back.flatten(0, 1))

        return ((batch, add) for batch in room.batches(outputs, products, into))

    def _masked(self, values: Tensor) -> Tensor:
        return values if self.masks is None else values * self.masks


def _reordered(values: Tensor, rows: Tensor) -> Tensor:
    """(clients, points, ...) with the points in another order."""
    return values.flatten(0, 1).index_select(0, rows.flatten()).view_as(values)
