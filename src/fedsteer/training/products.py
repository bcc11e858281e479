"""X X^T + 1 of clients' own points, kept from round to round: no step ever changes it.

All that is kept is smaller than half of the images; who has not been here for longest goes first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Products:
    """The products of every client, by the places of its points in all the data."""

    def __init__(self, room: int) -> None:
        self.room, self.numbers = room, 0
        self._kept = dict[bytes, Tensor]()  # in the order they were last asked for

    def of(self, clients: Sequence[NDArray[np.int64]], images: Tensor, into: Tensor) -> None:
        """To `into` (clients, n, n), zero behind the last point; images (clients, n, inputs)."""
        found = [self._one(points, images, place) for place, points in enumerate(clients)]
        count = images.shape[1]
        if all(len(points) == count for points in clients):
            torch.cat(found, out=into.view(-1, count))
            return
        for products, room in zip(found, into.zero_(), strict=True):
            room[: len(products), : len(products)] = products

    def _one(self, points: NDArray[np.int64], images: Tensor, place: int) -> Tensor:
        key = points.tobytes()
        found = self._kept.pop(key, None)
        if found is None:
            own = images[place, : len(points)]
            found = torch.mm(own, own.t()).add_(1.0)
            self.numbers += found.numel()
        self._kept[key] = found
        while self.numbers > self.room:
            self.numbers -= self._kept.pop(next(iter(self._kept))).numel()
        return found
