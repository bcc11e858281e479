"""Means over seeds with 95 % intervals."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# Student's t, 97.5 % quantile, for 1 to 30 degrees of freedom.
T_QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
NORMAL_QUANTILE = 1.959964


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; the 95 % interval is mean ± half. One seed has no interval."""

    mean: float
    half: float | None
    count: int

    @property
    def drawn(self) -> float | None:
        """`half` for a picture; that of two seeds, 12.7 standard errors, would fill it."""
        return self.half if self.count > 2 else None


def t_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t; beyond the table, its expansion around the normal."""
    if freedom < 1:
        raise ValueError("Student's t needs at least one degree of freedom")
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    z = NORMAL_QUANTILE
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + first + second


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Mean and interval of the values that are there; None if none is."""
    known = np.array([value for value in values if value is not None], float)
    known = known[np.isfinite(known)]
    if not known.size:
        return None
    half = None
    if known.size > 1:
        half = t_quantile(known.size - 1) * float(known.std(ddof=1)) / known.size**0.5
    return Estimate(mean=float(known.mean()), half=half, count=int(known.size))


def height(found: Estimate | None) -> float:
    """A sort key: the mean, or -1 (below all accuracies) if there is none."""
    return -1.0 if found is None else found.mean
