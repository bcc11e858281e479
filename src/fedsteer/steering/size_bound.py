"""A bound on reported numbers of data points, so that one wrong report cannot stop training.

    n_i <- min(n_i, c max(n_i before, r)),   r = median of the latest 100 sizes

A client that once reports a million points instead of a hundred would get nearly all the weight,
and in an open population everybody else's steps would shrink with it. A client that has really
grown is believed after a few visits, because each may multiply its size by c.
"""

from dataclasses import dataclass, field

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Floats

LATEST = 100
"""Sizes that the median is taken over."""


@dataclass
class SizeBound(Component):
    """The latest sizes, of all clients."""

    times: float  # c
    latest: Floats = field(default_factory=lambda: np.zeros(0))

    def limit(self, sizes: Floats, old_sizes: Floats) -> Floats:
        """What is believed of these reports; `old_sizes` are 0 for newcomers."""
        if not len(sizes):
            return sizes
        usual = float(np.median(self.latest if len(self.latest) else sizes))
        limited: Floats = np.minimum(sizes, self.times * np.maximum(old_sizes, usual))
        return limited

    def keep(self, sizes: Floats) -> None:
        """The sizes of a round, as they were believed."""
        self.latest = np.concatenate([self.latest, sizes])[-LATEST:]
