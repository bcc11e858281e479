"""Rows that are tensors of their own, for a pass that reads them where they lie.

A server gets the updates of a large model one by one. To put ten of them into one matrix moves as
many bytes as the whole pass over them and the basis, and holds them twice; so does a column that is
copied out of an update. `Vectors` stand in for such a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from fedsteer.steering.kernels import Pairs

ALIGNED = 16  # bytes: what Triton asks of an address before it reads more than one number
LARGER = 1.25  # times its own size: more memory than that is not a tensor's own


@final
class Vectors:
    """(n, d) numbers, a tensor for each row.

    Nobody writes to these tensors: a row changes when another tensor takes its place. So they may
    be a caller's, and be in several `Vectors` at once.
    """

    def __init__(self, rows: Sequence[Tensor]) -> None:
        first = rows[0]
        self.rows = list(rows)
        self.shape = (len(rows), first.shape[0])
        self.dtype, self.device = first.dtype, first.device
        self.addresses = [row.data_ptr() for row in rows]

    @staticmethod
    def of(rows: Sequence[Tensor]) -> Vectors | None:
        """None where they are of several types, or their numbers do not lie side by side."""
        dtype = rows[0].dtype
        if not all(row.dtype == dtype and row.is_contiguous() for row in rows):
            return None
        return Vectors([row.detach() if row.requires_grad else row for row in rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, picked: Any) -> Vectors | Tensor:
        """Some of the rows, by a slice or a list of their numbers; none of them are a matrix."""
        numbers = range(len(self))[picked] if isinstance(picked, slice) else map(int, picked)
        rows = [self.rows[number] for number in numbers]
        return Vectors(rows) if rows else self.rows[0].new_empty((0, self.shape[1]))

    def __setitem__(self, row: int, value: Tensor | float) -> None:
        """Another vector, or one full of this number, takes the place of a row."""
        if not isinstance(value, Tensor):
            value = torch.full_like(self.rows[row], value)
        self.rows[row], self.addresses[row] = value, value.data_ptr()

    @property
    def aligned(self) -> bool:
        """Whether all of them begin where several numbers may be read at once."""
        return not any(address % ALIGNED for address in self.addresses)

    @property
    def nbytes(self) -> int:
        """Of all rows, as of a matrix."""
        return sum(row.nbytes for row in self.rows)

    def matrix(self) -> Tensor:
        """A copy that lies side by side, for whoever cannot do without."""
        return torch.stack(self.rows)

    def renewed(self, updates: Tensor | Vectors, pairs: Pairs, *, given: bool) -> Vectors:
        """With updates[position] in place of each row: itself if it was `given` away, else a copy.

        A copy as well where more memory than its own hangs on it, as that of a matrix on its rows.
        """
        rows, dtype = self.rows.copy(), self.dtype
        fresh = updates.rows if isinstance(updates, Vectors) else updates
        for row, position in pairs:
            vector = fresh[position]
            own = given and vector.untyped_storage().nbytes() <= LARGER * vector.nbytes
            rows[row] = vector if own and vector.dtype == dtype else vector.to(dtype, copy=True)
        return Vectors(rows)
