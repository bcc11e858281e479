"""What follows from the columns' Gram matrix alone: worked out once, until a column changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedsteer.steering.kernels import Floats
from fedsteer.steering.ridge import condition, ridge_solver


@dataclass(frozen=True, eq=False)
class Geometry:
    """Scales, condition and the factored ridge system. Nothing here may be written into."""

    gram: Floats  # (k, k) of the raw columns
    basis: str  # "unit" or "mean"

    @cached_property
    def present(self) -> Floats:
        """1 where there is a column, 0 where its client was never seen or sent zeros."""
        return (self.gram.diagonal() > 0).astype(float)

    @cached_property
    def columns(self) -> int:
        """How many are present."""
        return int(self.present.sum())

    @cached_property
    def scale(self) -> Floats:
        """Factor from raw columns to those coordinates are solved in: 1/|h_j|, or 1/k."""
        squares = self.gram.diagonal()
        if self.basis == "mean":
            return (squares > 0) / len(squares)
        return np.divide(1.0, np.sqrt(squares), out=np.zeros(len(squares)), where=squares > 0)

    @cached_property
    def scaled(self) -> Floats:
        """K, the Gram matrix of the scaled columns."""
        return self.gram * (self.scale[:, None] * self.scale)

    @cached_property
    def condition(self) -> float:
        """Of K, without the columns that are not there."""
        if self.columns == len(self.present):
            return condition(self.scaled)
        present = np.flatnonzero(self.present)
        return condition(self.scaled[present[:, None], present])

    def estimate(self, combined: Floats, products: Floats) -> tuple[Floats, Floats]:
        """(m,) g_i . estimate_i and |estimate_i|^2 of estimates that combine raw columns."""
        return np.vecdot(combined, products.T), np.vecdot(combined @ self.gram, combined)

    @cached_property
    def _solvers(self) -> dict[tuple[float, str], Callable[[Floats], Floats]]:
        return {}

    def solver(self, ridge: float, kind: str) -> Callable[[Floats], Floats]:
        """right -> (K + ridge I)^-1 right."""
        known = self._solvers.get((ridge, kind))
        if known is None:
            known = self._solvers[ridge, kind] = ridge_solver(self.scaled, ridge, kind)
        return known
