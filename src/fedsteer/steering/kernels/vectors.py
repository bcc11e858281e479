"""Rows that are arrays of their own, for passes that read them where they lie.

A server gets the updates of its clients one by one. To put those of a large model into one matrix
takes about as long as the whole pass over them and the basis, and holds them twice; on a GPU, so
does a column that is copied out of an update. `Vectors` stand in for such a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import Any, final

import numpy as np

LARGE = 1 << 17  # numbers in a vector: shorter ones are put side by side in no time
ALIGNED = 16  # bytes: what Triton asks of an address before it reads more than one number


@final
class Vectors:
    """(n, d) numbers, an array of one library for each row; indexed as a matrix would be.

    Nobody writes to these arrays, and no row is ever another one: they may be a caller's, and in
    several `Vectors` at once.
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
        """A row by its number, several as `Vectors`, `[:, block]` as a matrix; so is no row."""
        if isinstance(picked, tuple):
            every, block = picked
            assert every == slice(None)
            return _side_by_side([row[block] for row in self.rows])
        if isinstance(picked, (int, np.integer)):
            return self.rows[picked]
        numbers = range(len(self))[picked] if isinstance(picked, slice) else picked
        rows = [self.rows[number] for number in numbers]
        return Vectors(rows) if rows else self.rows[0][None][:0]

    @property
    def nbytes(self) -> int:
        """Of all rows, as of a matrix."""
        return sum(row.nbytes for row in self.rows)

    @cached_property
    def addresses(self) -> list[int]:
        """Where each begins (torch)."""
        return [row.data_ptr() for row in self.rows]

    @cached_property
    def aligned(self) -> bool:
        """Whether all of them begin where several numbers may be read at once (torch)."""
        return reduce(or_, self.addresses) % ALIGNED == 0


def _side_by_side(rows: list[Any]) -> Any:
    """A matrix with copies of these rows."""
    if isinstance(rows[0], np.ndarray):
        return np.stack(rows)
    from torch import stack

    return stack(rows)
