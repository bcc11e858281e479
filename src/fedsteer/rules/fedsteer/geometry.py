"""What follows from the Gram matrix of the columns."""

import numpy as np

from fedsteer.rules.beliefs import Beliefs, Estimates
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

    def beliefs(self, products: Floats, old: Floats, new: Floats) -> Beliefs:
        """What stored coordinates said of updates.

        products   (k, m) of raw columns and updates
        old, new   (m, k) before and after the round
        """
        present = np.flatnonzero(self.present)
        return Beliefs(
            before=self._estimates(products, old),
            after=self._estimates(products, new),
            condition=condition(self.scaled[np.ix_(present, present)]),
            columns=len(present),
        )

    def _estimates(self, products: Floats, stored: Floats) -> Estimates:
        coordinates = stored * self.stored
        return Estimates(
            products=np.vecdot(coordinates, products.T),
            squares=np.vecdot(coordinates @ self.gram, coordinates),
        )
