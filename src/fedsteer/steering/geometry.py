"""What follows from the columns' Gram matrix alone: worked out once, until a column changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np

from fedsteer.steering.kernels import Floats, Pairs
from fedsteer.steering.ridge import condition, ridge_solver


class Geometry:
    """Scales, condition and the factored ridge system. Nothing here may be written into.

    gram    (k, k) of the raw columns
    basis   "unit" or "mean"
    scale   (k,) from raw columns to those coordinates are solved in: 1/|h_j|, or 1/k; 0 where there
            is no column
    """

    def __init__(self, gram: Floats, basis: str) -> None:
        squares = gram.diagonal().tolist()  # so few that lists are quicker than arrays
        if basis == "mean":
            scale = [1.0 / len(squares) if square > 0 else 0.0 for square in squares]
        else:
            scale = [1.0 / math.sqrt(square) if square > 0 else 0.0 for square in squares]
        self.gram, self.basis = gram, basis
        self.scale: Floats = np.array(scale)

    @cached_property
    def present(self) -> Floats:
        """1 where there is a column, 0 where its client was never seen or sent zeros."""
        return (self.gram.diagonal() > 0).astype(np.float64)

    @cached_property
    def columns(self) -> int:
        """How many are present."""
        return int(self.present.sum())

    @cached_property
    def scaled(self) -> Floats:
        """K, the Gram matrix of the scaled columns."""
        return (self.gram * self.scale[:, None]) * self.scale  # the scales' product may overflow

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
        """products -> (K + ridge I)^-1 Q^T G, for the products of the raw columns with G."""
        known = self._solvers.get((ridge, kind))
        if known is None:
            known = self._solvers[ridge, kind] = ridge_solver(self.scaled, ridge, kind, self.scale)
        return known


def exchange(gram: Floats, across: Floats, inner: Floats, pairs: Pairs) -> None:
    """Change `gram` and `across` in place: (column, update) by (column, update), one is the other.

    gram     (k, k) of the columns
    across   (k, c) of the columns and the updates at hand
    inner    (c, c) of the updates at hand
    """
    columns, updates = gram.T, across.T  # views: an index of two parts takes longer to look at
    for column, update in pairs:
        across[column] = inner[update]
        gram[column] = columns[column] = updates[update]
