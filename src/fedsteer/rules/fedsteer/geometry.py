"""What follows from the Gram matrix of the columns."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedsteer.rules.beliefs import Estimates
from fedsteer.rules.fedsteer.ridge import condition
from fedsteer.steering.kernels import Floats


class Geometry:
    """Scales of the columns. Read-only.

    gram     (k, k) of the raw columns
    basis    "unit" or "mean"
    scale    (k,) from raw to scaled columns: 1/|h_j|, or 1/k; 0 for vacant columns
    present  (k,) 1, or 0 for vacant columns and columns of zeros
    stored   (k,) from raw columns to those that stored coordinates refer to
    scaled   (k, k) K, the Gram matrix of the scaled columns
    """

    def __init__(self, gram: Floats, *, basis: str, magnitude: str) -> None:
        squares = gram.diagonal()
        here = squares > 0
        lengths = np.sqrt(squares, out=np.ones(len(gram)), where=here)
        self.gram = gram
        self.present: Floats = here.astype(np.float64)
        self.scale: Floats = self.present / (len(gram) if basis == "mean" else lengths)
        self.stored = self.present if magnitude == "follow" else self.scale
        # scale * scale could overflow
        self.scaled: Floats = (gram * self.scale[:, None]) * self.scale


@dataclass(frozen=True, kw_only=True)
class SteeredBeliefs:
    """What the coordinates said of this round's updates; worked out if somebody looks."""

    geometry: Geometry
    products: Floats  # (k, m) of raw columns and updates
    old: Floats  # (m, k) coordinates before the round, as stored
    new: Floats  # (m, k) and after it

    @cached_property
    def before(self) -> Estimates:
        return self._estimates(self.old)

    @cached_property
    def after(self) -> Estimates:
        return self._estimates(self.new)

    @cached_property
    def condition(self) -> float:
        """Condition number of K without vacant columns."""
        present = np.flatnonzero(self.geometry.present)
        return condition(self.geometry.scaled[np.ix_(present, present)])

    @property
    def columns(self) -> int:
        return int(self.geometry.present.sum())

    def _estimates(self, stored: Floats) -> Estimates:
        coordinates = stored * self.geometry.stored
        return Estimates(
            products=np.vecdot(coordinates, self.products.T),
            squares=np.vecdot(coordinates @ self.geometry.gram, coordinates),
        )
