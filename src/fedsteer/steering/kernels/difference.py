"""Updates that are computed where they are read."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, final

import numpy as np
from numpy.typing import NDArray


@final
class Difference:
    """The vector `whole` minus one that comes in `parts`, as a stand-in for a NumPy array.

    A server has the model it sent and those that came back. Their differences would take as much
    memory again, and getting that from the system takes longer than subtracting.
    """

    device = "cpu"

    def __init__(self, whole: NDArray[Any], parts: Sequence[NDArray[Any]]) -> None:
        self.whole, self.parts = whole, parts
        self.ends = [*accumulate(map(len, parts))]
        self.shape, self.dtype = whole.shape, whole.dtype

    def __len__(self) -> int:
        return len(self.whole)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = np.empty(self.shape, self.dtype)
        self.read(slice(0, len(self)), values)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __rmul__(self, factor: float) -> NDArray[Any]:
        return factor * np.asarray(self)

    def read(self, block: slice, out: NDArray[Any]) -> None:
        """out[:] = self[block]."""
        start, number = block.start, bisect_right(self.ends, block.start)
        while start < block.stop:
            part, end = self.parts[number], self.ends[number]
            stop, first = min(end, block.stop), end - len(part)
            np.subtract(
                self.whole[start:stop],
                part[start - first : stop - first],
                out=out[start - block.start : stop - block.start],
                casting="same_kind",
            )
            start, number = stop, number + 1

    def __getitem__(self, places: NDArray[np.int64]) -> NDArray[Any]:
        values, which = self.whole[places], np.searchsorted(self.ends, places, side="right")
        for number in np.unique(which).tolist():
            part, here = self.parts[number], which == number
            values[here] -= part[places[here] - (self.ends[number] - len(part))]
        return values
