"""Long vectors that stand in for a matrix of updates."""

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np

from fedsteer.steering.kernels.difference import Difference

LARGE = 1 << 17  # numbers in a vector; shorter ones are stacked in no time


@final
class Vectors:
    """(n, d) numbers as n arrays of one library, indexed like a matrix. Read-only.

    A server gets updates one by one. Stacking those of a large model takes as long as the pass over
    them, and holds them twice, so on a CPU `Vectors` stand in for the matrix. (On a GPU the kernel
    reads matrices only.) The arrays may belong to the caller.
    """

    def __init__(self, rows: Sequence[Any]) -> None:
        first = rows[0]
        self.rows = list(rows)
        self._like = first.whole if isinstance(first, Difference) else first
        self.shape = (len(rows), first.shape[0])
        self.dtype, self.device = first.dtype, first.device

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __getitem__(self, picked: Any) -> Any:
        """A row by its number, several as `Vectors`; `[:, block]` and no row at all as a matrix."""
        if isinstance(picked, tuple):
            every, block = picked
            assert every == slice(None)
            return self._block(block)
        if isinstance(picked, (int, np.integer)):
            return self.rows[picked]
        numbers = range(len(self))[picked] if isinstance(picked, slice) else picked
        rows = [self.rows[number] for number in numbers]
        return Vectors(rows) if rows else self._like[None][:0]

    def _block(self, block: slice) -> Any:
        """A new matrix."""
        if not isinstance(self._like, np.ndarray):
            from torch import stack

            return stack([row[block] for row in self.rows])
        matrix = np.empty((len(self), block.stop - block.start), self.dtype)
        for row, values in zip(self.rows, matrix, strict=True):
            if isinstance(row, Difference):
                row.read(block, values)
            else:
                values[:] = row[block]
        return matrix
