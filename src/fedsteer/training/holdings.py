"""Clients' own points as matrices, kept from round to round.

Kept are the products X X^T + 1 of a client's points among themselves, which no step ever changes,
and the points themselves, copied to where they lie together, unless they lie so already. Both are
bounded by `KEPT`; who has not been here for longest goes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEPT = 1 << 26
"""Most numbers kept: 256 MB as float32."""


@dataclass
class Holding:
    """The points of one client."""

    images: Tensor  # (n, inputs)
    labels: Tensor  # (n,)
    own: int  # numbers held for this client alone
    products: Tensor | None = None  # (n, n)


class Holdings:
    """What clients hold, by the places of their points in all the data."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images.flatten(1), labels
        self.numbers = 0
        self._kept = dict[bytes, Holding]()  # last come, last in line

    def of(self, points: NDArray[np.int64], products: bool) -> Holding:
        """A client's holding; `products` asks for X X^T + 1, too."""
        key = points.tobytes()
        found = self._kept.pop(key, None) or self._collect(points)
        self._kept[key] = found
        if products and found.products is None:
            found.products = torch.mm(found.images, found.images.t()).add_(1.0)
            found.own += found.products.numel()
            self.numbers += found.products.numel()
        while self.numbers > KEPT:
            self.numbers -= self._kept.pop(next(iter(self._kept))).own
        return found

    def _collect(self, points: NDArray[np.int64]) -> Holding:
        if (np.diff(points) == 1).all():  # they lie together: a view
            where = slice(int(points[0]), int(points[-1]) + 1)
            return Holding(self.images[where], self.labels[where], 0)
        places = torch.from_numpy(points)
        images = self.images.index_select(0, places)
        self.numbers += images.numel()
        return Holding(images, self.labels.index_select(0, places), images.numel())
