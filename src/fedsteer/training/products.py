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

Points = NDArray[np.int64]
"""The places of a client's points in all the data: one array a client, round after round."""


class Products:
    """The products of every client, rows of a table as wide as the largest of them so far."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._width = self._most = 0  # points of a client, and rows
        self._table = torch.empty(0)  # the system hands out memory as rows are written
        # Rows by the identity of a client's array, which lives as long as it stands here.
        self._row_of = dict[int, int]()
        self._points = list[Points]()
        self._asked, self._calls = list[int](), 0  # when each row was last asked for

    @property
    def numbers(self) -> int:
        """How many are kept."""
        return len(self._points) * self._width**2

    def of(self, clients: Sequence[Points], images: Tensor, into: Tensor) -> None:
        """To `into` (clients, n, n), zero behind the last point; images (clients, n, inputs)."""
        count = images.shape[1]
        if count > self._width:
            self._width, self._most = count, self.room // count**2
            self._table = images.new_empty((self._most, count, count))
            self._row_of.clear()
            self._points.clear()
            self._asked.clear()
        if len(clients) > self._most:  # too many to keep
            for points, own, place in zip(clients, images, into, strict=True):
                _write(own[: len(points)], place)
            return
        self._calls += 1
        rows = [self._row_of.get(id(points), -1) for points in clients]
        for row in rows:
            if row >= 0:
                self._asked[row] = self._calls  # none of these may go
        if -1 in rows:
            for points, own in zip(clients, images, strict=True):
                if id(points) not in self._row_of:  # somebody may be here twice
                    self._add(points, own)
            rows = [self._row_of[id(points)] for points in clients]
        kept = self._table if count == self._width else self._table[:, :count, :count]
        # Few long rows: NumPy takes half of the time that torch's `index_select` does.
        kept.numpy().take(rows, axis=0, out=into.numpy(), mode="clip")

    def _add(self, points: Points, images: Tensor) -> None:
        """A row for a new client: a free one, or that of who was not here for longest."""
        row = len(self._points)
        if row < self._most:
            self._points.append(points)
            self._asked.append(self._calls)
        else:
            row = self._asked.index(min(self._asked))
            del self._row_of[id(self._points[row])]
            self._points[row], self._asked[row] = points, self._calls
        self._row_of[id(points)] = row
        _write(images[: len(points)], self._table[row])


def _write(points: Tensor, into: Tensor) -> None:
    """Their products, and zero behind them."""
    count = len(points)
    with using(1):  # threads share out clients, never a product
        into.zero_()[:count, :count] = torch.mm(points, points.t()).add_(1.0)
