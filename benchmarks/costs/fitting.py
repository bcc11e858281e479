"""Slopes: how a cost grows with a size, as the exponent of a power law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsteer.report.statistics import t_quantile


@dataclass(frozen=True)
class Fit:
    """cost = exp(intercept) * size**slope; the 95 % interval of the slope is slope ± half.

    The interval shows how far the points are from a straight line, through noise or curvature: a
    cost with a fixed part is no power law, and its interval is wide. Two points have none.
    """

    slope: float
    half: float | None
    intercept: float

    def at(self, size: float) -> float:
        """The fitted cost."""
        return float(np.exp(self.intercept) * size**self.slope)


def fit(sizes: Sequence[float], costs: Sequence[float]) -> Fit:
    """Least squares on the logarithms."""
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(costs, float))
    slope, intercept = np.polyfit(x, y, 1)
    freedom = len(x) - 2
    half = None
    if freedom > 0:
        left = y - (slope * x + intercept)
        spread = np.sqrt(left @ left / freedom / np.sum((x - x.mean()) ** 2))
        half = t_quantile(freedom) * float(spread)
    return Fit(slope=float(slope), half=half, intercept=float(intercept))
