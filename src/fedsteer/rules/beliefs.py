"""What a rule believed of the updates of a round before it had them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedsteer.steering.kernels import Floats


class Estimates(NamedTuple):
    """What a rule believed of this round's updates."""

    products: Floats  # (m,) g_i . estimate_i
    squares: Floats  # (m,) |estimate_i|^2

    def residuals(self, squares: Floats) -> Floats:
        """(m,) |g_i - estimate_i|^2, where |g_i|^2 are `squares`."""
        found: Floats = np.maximum(squares - 2 * self.products + self.squares, 0.0)
        return found


@dataclass(frozen=True)
class Beliefs:
    """What a rule believed of the active clients, and how good its basis was.

    Diagnostics keep it, so it must hold nothing of size d. What is expensive is a cached property
    of a subclass.
    """

    before: Estimates | None = None  # when the updates came in
    after: Estimates | None = None  # with coordinates recomputed from the updates
    condition: float = float("nan")  # of the basis' Gram matrix
    columns: int = 0  # of the basis in use


NO_BELIEFS = Beliefs()
