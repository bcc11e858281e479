"""Arrays that are not steered: batch-norm statistics, counters, layers outside the chosen subset.

They are averaged over the fresh clients by data points, as in Flower's FedAvg, but no single client
moves an array far. With b the server's array, v_i a client's and n_i the points it is believed,

    b <- sum_i n_i (m + f_i (v_i - m)) / sum_i n_i,    f_i = min(1, 10 r_i / |v_i - m|)

where m, the centre, is the median of the v_i in every element and r_i is how far from it others
are: the median of the latest hundred distances or, if that is longer, of the others' in this round.
If one or two clients come, m is b. Of two in the middle the smaller counts. Clients that left an
array as it was say nothing of the others. If nothing is known of an array, r_i is |b|, so one of
zeros waits for a second client.

Honest clients count as they are, unless they are ten times as far from the centre as is usual. That
is much: with torch's momentum, one batch moves statistics a tenth of the way, and many all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.steering.state import Arrays, below
from fedsteer.steering.usual import LATEST, middle

STATISTICS = ("*running_mean", "*running_var", "*num_batches_tracked")
"""Names that torch gives to batch-norm statistics."""
NEVER_NEGATIVE = STATISTICS[1:]
"""A negative variance makes every evaluation nan."""
TIMES = 10.0
PACKED = "distances/"
BLOCK = 1 << 20  # elements whose median is taken at once

Named = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]


def limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The smallest and the largest number of a type."""
    if dtype.kind == "b":
        return 0.0, 1.0
    found = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return float(found.min), float(found.max)


def fault_of(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> str | None:
    """Why a client's array cannot become a part of the model, in which it will have this type."""
    low, high = limits(dtype)
    lowest, highest = array.min(initial=0), array.max(initial=0)
    if not (np.isfinite(array).all() and low <= lowest and highest <= high):
        return f"is not finite in its type, {dtype.str}"
    if lowest < 0 and any(fnmatchcase(name, pattern) for pattern in NEVER_NEGATIVE):
        return "is negative"
    return None


@dataclass
class Buffers:
    """The server's arrays, and how far clients were from the centre; in the checkpoint."""

    arrays: Arrays
    distances: dict[str, Floats] = field(default_factory=dict)  # the latest, by array

    def average(self, rests: Sequence[Named], sizes: Sequence[float]) -> None:
        """Take the mean of what fresh clients sent; without any, everything stays."""
        if not rests:
            return
        shares = np.asarray(sizes, np.float64) / np.sum(sizes)
        result: Arrays = {}
        for name, before in self.arrays.items():
            sent = [rest[name] for rest in rests]
            moved = np.array([not np.array_equal(array, before) for array in sent])
            if not moved.any():
                result[name] = before  # a float64 mean cannot hold every integer
                continue
            movers = [array for array, differs in zip(sent, moved, strict=True) if differs]
            centre = before.astype(np.float64) if len(movers) < 3 else _median_of(movers)
            factors = np.ones(len(sent))
            factors[moved] = self._factors(name, movers, centre)
            mean = (shares @ (1.0 - factors)) * centre
            for weight, array in zip(shares * factors, sent, strict=True):
                mean += weight * array.astype(np.float64)
            result[name] = _rounded(mean, before.dtype)
        self.arrays = result

    def _factors(self, name: str, movers: Sequence[NDArray[Any]], centre: Floats) -> Floats:
        """f_i of clients that sent these arrays; their distances are kept."""
        wide = (array.astype(np.float64) for array in movers)  # not float128, nor whole numbers
        with np.errstate(over="ignore"):  # a distance may be beyond float64
            found = np.array([np.linalg.norm((array - centre).ravel()) for array in wide])
        latest, factors = self.distances.get(name, np.zeros(0)), np.ones(len(found))
        for place, distance in enumerate(found):
            known = [middle(part) for part in (latest, np.delete(found, place)) if len(part)]
            usual = max(known) if known else float(np.linalg.norm(centre.ravel()))
            if distance > TIMES * usual:
                factors[place] = TIMES * usual / distance
        self.distances[name] = np.concatenate([latest, found])[-LATEST:]
        return factors

    def pack(self) -> Arrays:
        return {PACKED + name: found for name, found in self.distances.items()}

    def restore(self, packed: Arrays) -> None:
        self.distances = below(PACKED, packed)


def _median_of(arrays: Sequence[NDArray[Any]]) -> Floats:
    """The median in every element."""
    rows, found = [array.reshape(-1) for array in arrays], np.empty(arrays[0].size)
    for start in range(0, len(found), BLOCK):
        block = slice(start, start + BLOCK)
        found[block] = middle(np.stack([row[block].astype(np.float64) for row in rows]))
    return found.reshape(arrays[0].shape)


def _rounded(mean: Floats, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A mean in the type of the model, at the end of its range if rounding leads beyond it."""
    low, high = limits(dtype)
    if dtype.kind == "f":
        return np.asarray(np.clip(mean, low, high)).astype(dtype)
    whole = np.rint(np.maximum(mean, low))
    inside = whole < high  # of 64 bits, `high` itself is one too many
    return np.where(inside, np.where(inside, whole, 0.0).astype(dtype), _highest(dtype))


def _highest(dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.array(True if dtype.kind == "b" else np.iinfo(dtype).max, dtype)
