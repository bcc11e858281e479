"""The safeguard against collapse: no aggregate is longer than its parts allow.

    |sum_i d_i g_i| <= sum_i d_i |g_i| =: b,   so   Delta <- Delta min(1, rho b / |Delta|)

b uses the last known norm of each client, this round's included; clients without one count with the
mean of the others, weighted by size. This is a heuristic, because old norms age, and it is biased
whenever it acts, so every step reports its factor.

The sum over all clients is kept running in two numbers. In one, a single update 10^18 times as long
as the others would leave nothing but its rounding error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Floats, Integers
from fedsteer.steering.table import Table


class NormSums(NamedTuple):
    """Over clients with a known norm; see `NormBound`."""

    weighted: float
    rest: float
    weight: float


@dataclass
class NormBound(Component):
    """Known norms by slot and their running weighted sum; `factor` is rho."""

    factor: float
    norms: Table = field(default_factory=lambda: Table.empty(0, fill=-1.0))  # -1: never known
    weighted: float = 0.0  # sum of n_i |g_i| over clients with a known norm
    weight: float = 0.0  # sum of n_i over them
    rest: float = 0.0  # rounding error of `weighted`

    def judge(
        self, delta_norm: float, slots: Integers, norms: Floats, old_sizes: Floats, sizes: Floats
    ) -> tuple[float, NormSums]:
        """min(1, rho b / |Delta|), and the sums with these clients' norms and sizes, for `keep`."""
        sums = self._with(slots, norms, old_sizes, sizes)
        if sums.weight <= 0.0 or delta_norm <= 0.0:
            return 1.0, sums
        return min(1.0, self.factor * sums.weighted / sums.weight / delta_norm), sums

    def keep(self, slots: Integers, norms: Floats, sums: NormSums) -> None:
        """Store what `judge` found."""
        self.weighted, self.rest, self.weight = sums
        self.norms[slots] = norms

    def forget(self, slots: Integers, sizes: Floats) -> None:
        """These clients left for good."""
        nothing = np.zeros(len(slots))
        self.weighted, self.rest, self.weight = self._with(slots, nothing, sizes, nothing)
        self.norms[slots] = np.full(len(slots), -1.0)

    def _with(self, slots: Integers, norms: Floats, old_sizes: Floats, sizes: Floats) -> NormSums:
        """The sums with the new norms and sizes of these clients."""
        old = self.norms[slots]
        known = old >= 0
        less = (old_sizes * old)[known]
        parts = [self.weighted, self.rest, *(sizes * norms).tolist(), *(-less).tolist()]
        weighted = math.fsum(parts)
        weight = self.weight + float(sizes.sum() - old_sizes[known].sum())
        return NormSums(weighted, math.fsum([*parts, -weighted]), weight)
