"""The safeguard against collapse: no aggregate is longer than its parts allow.

    |sum_i d_i g_i| <= sum_i d_i |g_i| =: b,   so   Delta <- Delta min(1, rho b / |Delta|)

b uses the last known norm of each client, this round's included; clients never heard of count with
the mean of the known ones. A heuristic, because old norms age, and biased whenever it acts, so
every step reports the factor it applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedsteer.steering.kernels import Floats, Integers
from fedsteer.steering.state import Component
from fedsteer.steering.table import Table


@dataclass
class NormBound(Component):
    """Known norms by slot and their running weighted sum; `factor` is rho."""

    factor: float
    norms: Table = field(default_factory=lambda: Table.empty(0, fill=-1.0))  # -1: never known
    weighted: float = 0.0  # sum of n_i |g_i| over clients with a known norm
    weight: float = 0.0  # sum of n_i over them

    def preview(
        self, slots: Integers, norms: Floats, old_sizes: Floats, sizes: Floats
    ) -> tuple[float, float]:
        """(weighted, weight) once these clients' norms and sizes are taken in."""
        old = self.norms[slots]
        known = old >= 0
        weighted = self.weighted + float(sizes @ norms - old_sizes[known] @ old[known])
        weight = self.weight + float(sizes.sum() - old_sizes[known].sum())
        return weighted, weight

    def scale(self, delta_norm: float, weighted: float, weight: float) -> float:
        """min(1, rho b / |Delta|)."""
        if weight <= 0.0 or delta_norm <= 0.0:
            return 1.0
        return min(1.0, self.factor * weighted / weight / delta_norm)

    def observe(self, slots: Integers, norms: Floats, old_sizes: Floats, sizes: Floats) -> None:
        """Take in the norms of this round."""
        self.weighted, self.weight = self.preview(slots, norms, old_sizes, sizes)
        self.norms[slots] = norms

    def forget(self, slots: Integers, sizes: Floats) -> None:
        """These clients left."""
        old = self.norms[slots]
        known = old >= 0
        self.weighted -= float(sizes[known] @ old[known])
        self.weight -= float(sizes[known].sum())
        self.norms[slots] = np.full(len(slots), -1.0)
