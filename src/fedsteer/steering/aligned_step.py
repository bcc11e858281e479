"""A step length decided by the past: longer while aggregates agree, shorter when they do not.

With Delta_t the aggregate of round t, m_t a running mean of those before it and f_t the factor,

    w <- w - rate f_t Delta_t
    c_t     = cos(Delta_t, m_t)                           the alignment
    f_{t+1} = f_t exp(kappa c_t), within [1/50, 1]        kappa = .3 if c_t > 0, else .6
    m_{t+1} = .9 m_t + .1 Delta_t

f_t is known before anyone knows who takes part in round t, so E[f_t Delta_t] = f_t E[Delta_t]: the
direction stays as unbiased as Delta_t is. Close to hypergradient descent on the server's rate
(Baydin et al. 2018). Costs one vector of size d.
"""

import math
from dataclasses import dataclass

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Array

FIRST, LEAST = 0.1, 0.02
RISE, FALL = 0.3, 0.6
KEPT = 0.9


@dataclass
class AlignedStep(Component):
    """The factor of the next round, and the mean of past aggregates it follows from."""

    factor: float = FIRST
    mean: Array | None = None  # m
    squared_norm: float = 0.0  # |m|^2

    def observe(self, delta: Array, norm: float) -> float:
        """Learn from an aggregate and its norm; returns its alignment, nan if there is none yet."""
        if self.mean is None:
            self.mean, self.squared_norm = (1 - KEPT) * delta, ((1 - KEPT) * norm) ** 2
            return math.nan
        product = float(self.mean @ delta)
        lengths = math.sqrt(self.squared_norm) * norm
        alignment = max(-1.0, min(product / lengths, 1.0)) if lengths > 0 else math.nan
        # In place: new memory of this size takes longer than the sum itself.
        self.mean *= KEPT / (1 - KEPT)
        self.mean += delta
        self.mean *= 1 - KEPT
        rest = 2 * KEPT * (1 - KEPT) * product + ((1 - KEPT) * norm) ** 2
        self.squared_norm = max(KEPT**2 * self.squared_norm + rest, 0.0)
        if not math.isnan(alignment):
            pace = RISE if alignment > 0 else FALL
            self.factor = max(LEAST, min(self.factor * math.exp(pace * alignment), 1.0))
        return alignment
