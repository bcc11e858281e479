"""No single update counts for more than a few usual ones.

    g_i <- g_i min(1, c r / |g_i|),     r = median length of the latest updates, before this round

A client whose local training blew up, or who means harm, can send an update a hundred times as long
as the others'. One of them in the first rounds can throw a network so far off that it never learns.
r is known before the round (in the first one it is the round's own median), so who else takes part
does not matter: the aggregate stays unbiased for the shortened updates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Floats

LATEST = 100
"""Updates that the median is taken over."""


@dataclass
class UpdateBound(Component):
    """Norms of the latest updates; `times` is c."""

    times: float
    norms: Floats = field(default_factory=lambda: np.zeros(0))

    def factors(self, norms: Floats) -> Floats | None:
        """What shortens each of these updates; None if all are short enough."""
        usual = self.norms if len(self.norms) else norms
        most = self.times * float(np.median(usual)) if len(usual) else 0.0
        if most <= 0.0 or norms.max(initial=0.0) <= most:
            return None
        return most / np.maximum(norms, most)

    def keep(self, norms: Floats) -> None:
        """Remember the norms of a round, as they were before they were shortened."""
        self.norms = np.concatenate([self.norms, norms])[-LATEST:]
