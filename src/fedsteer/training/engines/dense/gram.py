"""X X^T + 1 of clients' own points, kept from round to round."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Points = NDArray[np.int64]
"""The indices of a client's points: the same array every round."""


class GramMatrices:
    """The matrices of the clients seen last; `most` is how many numbers they may have together."""

    def __init__(self, most: int) -> None:
        self.most, self.numbers = most, 0
        # By identity of the array of points, which is kept so that no other array can have it.
        self._kept: OrderedDict[int, tuple[Points, Tensor]] = OrderedDict()

    def of(self, points: Points, images: Tensor) -> Tensor:
        """(n, n); images are (n, inputs), the client's own."""
        if id(points) in self._kept:
            self._kept.move_to_end(id(points))
            return self._kept[id(points)][1]
        gram = torch.mm(images, images.t()).add_(1.0)
        self._kept[id(points)] = points, gram
        self.numbers += gram.numel()
        while self.numbers > self.most:
            _, (_, oldest) = self._kept.popitem(last=False)
            self.numbers -= oldest.numel()
        return gram

    def stacked(self, clients: list[Points], images: Tensor) -> Tensor:
        """(clients, n, n) for images (clients, n, inputs); 0 behind a client's last point."""
        grams = [
            self.of(points, own[: len(points)]) for points, own in zip(clients, images, strict=True)
        ]
        if all(gram.shape == grams[0].shape for gram in grams):
            return torch.stack(grams)
        found = images.new_zeros((*images.shape[:2], images.shape[1]))
        for gram, place in zip(grams, found, strict=True):
            place[: len(gram), : len(gram)] = gram
        return found
