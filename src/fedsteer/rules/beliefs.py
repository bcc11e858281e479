"""What a rule believed of the updates of a round before it had them."""

from typing import NamedTuple

import numpy as np

from fedsteer.steering.kernels import Floats


class Estimates(NamedTuple):
    """What a rule believed of this round's updates."""

    products: Floats  # (m,) g_i . estimate_i
    squares: Floats  # (m,) |estimate_i|^2

    def residuals(self, squares: Floats) -> Floats:
        """(m,) |g_i - estimate_i|^2, where |g_i|^2 are `squares`."""
        return np.maximum(squares - 2 * self.products + self.squares, 0.0)


class Beliefs(NamedTuple):
    """What a rule believed of the active clients, and how good its basis was.

    By default: it estimated that nobody sends anything, and has no basis.
    """

    before: Estimates = Estimates(np.zeros(1), np.zeros(1))  # when the updates came in
    after: Estimates = Estimates(np.full(1, np.nan), np.full(1, np.nan))  # solved for them
    condition: float = float("nan")  # of the Gram matrix of the basis
    columns: int = 0  # of the basis in use
