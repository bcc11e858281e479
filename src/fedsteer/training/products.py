"""X X^T + 1 of clients' own points, kept from round to round: no step ever changes it.

All that is kept is smaller than half of the images; who has not been here for longest goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.training.threaded import using

Points = NDArray[np.int64]
"""The places of a client's points in all the data: one array a client, round after round."""


class Kept(NamedTuple):
    """Whose products a row of the table is."""

    row: int
    points: Points


class Products:
    """The products of every client, rows of a table as wide as the largest of them so far."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._width = self._most = 0  # points of a client, and rows
        self._table = torch.empty(0)  # the system hands out memory as rows are written
        # By the identity of the array, which lives as long as it is here, in the order they were
        # last asked for.
        self._kept = dict[int, Kept]()

    @property
    def numbers(self) -> int:
        """How many are kept."""
        return len(self._kept) * self._width**2

    def of(self, clients: Sequence[Points], images: Tensor, into: Tensor) -> None:
        """To `into` (clients, n, n), zero behind the last point; images (clients, n, inputs)."""
        count = images.shape[1]
        if count > self._width:
            self._width, self._most = count, self.room // count**2
            self._table = images.new_empty((self._most, count, count))
            self._kept.clear()
        if len(clients) > self._most:  # too many to keep
            for points, own, place in zip(clients, images, into, strict=True):
                _write(own[: len(points)], place)
            return
        rows = torch.tensor([self._row(points, images, i) for i, points in enumerate(clients)])
        kept = self._table if count == self._width else self._table[:, :count, :count]
        torch.index_select(kept, 0, rows, out=into)

    def _row(self, points: Points, images: Tensor, place: int) -> int:
        found = self._kept.pop(id(points), None)
        if found is None:
            row = len(self._kept)
            if row == self._most:
                row = self._kept.pop(next(iter(self._kept))).row
            _write(images[place, : len(points)], self._table[row])
            found = Kept(row, points)
        self._kept[id(points)] = found
        return found.row


def _write(points: Tensor, into: Tensor) -> None:
    """Their products, and zero behind them."""
    count = len(points)
    with using(1):  # threads share out clients, never a product
        into.zero_()[:count, :count] = torch.mm(points, points.t()).add_(1.0)
