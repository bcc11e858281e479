"""X X^T + 1 of clients' own points, kept from round to round: no step ever changes it.

All that is kept is smaller than half of the images; who has not been here for longest goes first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Again:
    """Memory that is used round after round: the system takes its time to hand out new one."""

    def __init__(self) -> None:
        self._all: Tensor | None = None

    def room(self, like: Tensor, *shape: int) -> Tensor:
        """Room of that shape, with anything in it; what was there before is lost."""
        count = math.prod(shape)
        if self._all is None or len(self._all) < count or self._all.dtype != like.dtype:
            self._all = like.new_empty(count)
        return self._all[:count].view(shape)


class Products:
    """The products of every client, by the places of its points in all the data."""

    def __init__(self, room: int) -> None:
        self.room, self.numbers = room, 0
        self._stack = Again()
        self._kept = dict[bytes, Tensor]()  # in the order they were last asked for

    def of(self, clients: Sequence[NDArray[np.int64]], images: Tensor) -> Tensor:
        """(clients, n, n), zero behind the last point; images (clients, n, inputs)."""
        found = [self._one(*both) for both in zip(clients, images.unbind(), strict=True)]
        most = images.shape[1]
        stacked = self._stack.room(images, len(found), most, most)
        if all(len(products) == most for products in found):
            return torch.stack(found, out=stacked)
        for into, products in zip(stacked.zero_(), found, strict=True):
            into[: len(products), : len(products)] = products
        return stacked

    def _one(self, points: NDArray[np.int64], images: Tensor) -> Tensor:
        key = points.tobytes()
        found = self._kept.pop(key, None)
        if found is None:
            own = images[: len(points)]
            found = torch.mm(own, own.t()).add_(1.0)
            self.numbers += found.numel()
        self._kept[key] = found
        while self.numbers > self.room:
            self.numbers -= self._kept.pop(next(iter(self._kept))).numel()
        return found
