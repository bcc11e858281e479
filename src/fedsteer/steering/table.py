"""A growing table with one row per client slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Integers

OUTWEIGHS = 1e4
"""A running sum is summed anew once a part was removed from it that is this many times as long as
the rest: its rounding error would show."""


@dataclass
class Table(Component):
    """Rows by slot; slots never written read as `fill`, and writing one makes room for it.

    Reading beyond the end is what lets a round be computed for newcomers before anything about
    them is stored.
    """

    values: NDArray[Any]  # (capacity, ...)
    fill: float = 0.0

    @staticmethod
    def empty(*shape: int, fill: float = 0.0, dtype: str = "float64") -> Table:
        """A table of `shape[0]` rows (it will grow), each of shape `shape[1:]`."""
        return Table(np.full(shape, fill, dtype), fill)

    def __getitem__(self, slots: Integers) -> NDArray[Any]:
        try:
            return self.values.take(slots, axis=0)
        except IndexError:
            inside = slots < len(self.values)
        rows = np.full((len(slots), *self.values.shape[1:]), self.fill, self.values.dtype)
        rows[inside] = self.values[slots[inside]]
        return rows

    def add(self, slots: Integers, amount: float) -> None:
        """Add to rows; each slot is named once."""
        self[slots] = self[slots] + amount

    def __setitem__(self, slots: Integers, rows: Any) -> None:
        self.reaching(slots)[slots] = rows

    def reaching(self, slots: Integers) -> NDArray[Any]:
        """`values`, to be read and written, with room for these slots."""
        needed = int(slots.max(initial=-1)) + 1
        if needed > len(self.values):
            length = max(2 * len(self.values), needed, 16)
            grown = np.full((length, *self.values.shape[1:]), self.fill, self.values.dtype)
            grown[: len(self.values)] = self.values
            self.values = grown
        return self.values
