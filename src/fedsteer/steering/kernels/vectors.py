"""Long vectors that stand in for a matrix of updates."""

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np

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
            parts = [row[block] for row in self.rows]
            if isinstance(parts[0], np.ndarray):
                return np.stack(parts)
            from torch import stack

            return stack(parts)
        if isinstance(picked, (int, np.integer)):
            return self.rows[picked]
        numbers = range(len(self))[picked] if isinstance(picked, slice) else picked
        rows = [self.rows[number] for number in numbers]
        return Vectors(rows) if rows else self.rows[0][None][:0]
