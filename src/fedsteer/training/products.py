"""X X^T + 1 of clients' own points, kept from round to round: no step ever changes it.

All that is kept is smaller than half of the images; who has not been here for longest goes first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.training.threaded import using


class Products:
    """The products of every client, by the places of its points in all the data.

    A client is a row of one table, as wide as the client with most points so far.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self._table = torch.empty((0, 0, 0))  # the system hands out memory as rows are written
        self._row_of = dict[bytes, int]()  # in the order they were last asked for

    @property
    def numbers(self) -> int:
        """How many are kept."""
        return len(self._row_of) * self._table[:1].numel()

    def of(self, clients: Sequence[NDArray[np.int64]], images: Tensor, into: Tensor) -> None:
        """To `into` (clients, n, n), zero behind the last point; images (clients, n, inputs)."""
        count = images.shape[1]
        if count > self._table.shape[1]:
            self._table = images.new_empty((self.room // count**2, count, count))
            self._row_of.clear()
        if len(clients) > len(self._table):  # too many to keep
            for points, own, place in zip(clients, images, into, strict=True):
                _write(own[: len(points)], place)
            return
        rows = [self._row(points, images, place) for place, points in enumerate(clients)]
        kept = self._table[:, :count, :count]
        torch.index_select(kept, 0, torch.tensor(rows), out=into)

    def _row(self, points: NDArray[np.int64], images: Tensor, place: int) -> int:
        key = points.tobytes()
        row = self._row_of.pop(key, None)
        if row is None:
            row = len(self._row_of)
            if row == len(self._table):
                row = self._row_of.pop(next(iter(self._row_of)))
            _write(images[place, : len(points)], self._table[row])
        self._row_of[key] = row
        return row


def _write(points: Tensor, into: Tensor) -> None:
    """Their products, and zero behind them."""
    count = len(points)
    with using(1):  # threads share out clients, never a product
        into.zero_()[:count, :count] = torch.mm(points, points.t()).add_(1.0)
