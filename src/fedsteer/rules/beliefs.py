"""What a rule believed of the updates of a round before it had them."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fedsteer.steering.kernels import Floats


class Estimates(NamedTuple):
    """What a rule believed of this round's updates."""

    products: Floats  # (m,) g_i . estimate_i
    squares: Floats  # (m,) |estimate_i|^2

    def residuals(self, squares: Floats) -> Floats:
        """(m,) |g_i - estimate_i|^2, where |g_i|^2 are `squares`."""
        return np.maximum(squares - 2 * self.products + self.squares, 0.0)


NO_ESTIMATES = Estimates(products=np.zeros(1), squares=np.zeros(1))
"""Of every client: it is estimated to send nothing."""
NOT_SOLVED = Estimates(products=np.full(1, np.nan), squares=np.full(1, np.nan))
"""Of a rule without coordinates."""


class Beliefs(Protocol):
    """What a rule believed of the active clients, and how good its basis was.

    Diagnostics keep it, so it must hold nothing of size d. What is expensive is a cached property.
    """

    @property
    def before(self) -> Estimates:
        """The estimates when the updates came in."""

    @property
    def after(self) -> Estimates:
        """The estimates with coordinates recomputed from the updates."""

    @property
    def condition(self) -> float:
        """Condition number of the basis' Gram matrix."""

    @property
    def columns(self) -> int:
        """Columns of the basis in use."""


@dataclass(frozen=True)
class PlainBeliefs:
    """Beliefs that cost nothing to compute."""

    before: Estimates = NO_ESTIMATES
    after: Estimates = NOT_SOLVED
    condition: float = float("nan")
    columns: int = 0


NO_BELIEFS = PlainBeliefs()
