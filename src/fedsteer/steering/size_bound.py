"""A bound on reported numbers of data points, so that one wrong report cannot stop training.

With r_1, r_2, r_3 the client's latest three reports and m the median of the latest 100 sizes,

    n_i <- min(median(r_1, r_2, r_3), c max(n_i before, m))

So a report that differs from those before it, up or down, counts once the next visit confirms it.
Of a client that reported only once before, the smaller number counts. Without this, a client that
reports a million points instead of a hundred, once, would get nearly all the weight until it comes
back. The factor c limits newcomers, and clients that repeat a wrong number.
"""

from dataclasses import dataclass, field

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Floats, Integers
from fedsteer.steering.table import Table

LATEST = 100
"""Sizes that the median is taken over."""


@dataclass
class SizeBound(Component):
    """The latest sizes of all clients, and the two latest reports of each."""

    times: float  # c
    latest: Floats = field(default_factory=lambda: np.zeros(0))
    reports: Table = field(default_factory=lambda: Table.empty(0, 2))  # 0: none

    def limit(self, slots: Integers, reported: Floats, old_sizes: Floats) -> Floats:
        """What is believed of these reports; `old_sizes` are 0 for newcomers."""
        if not len(reported):
            return reported
        earlier, last = self.reports[slots].T
        last = np.where(last > 0, last, np.where(old_sizes > 0, old_sizes, reported))
        earlier = np.where(earlier > 0, earlier, np.minimum(last, reported))
        usual = float(np.median(self.latest if len(self.latest) else reported))
        limit = self.times * np.maximum(old_sizes, usual)
        believed: Floats = np.minimum(np.median([earlier, last, reported], axis=0), limit)
        return believed

    def keep(self, slots: Integers, reported: Floats, sizes: Floats) -> None:
        """What the clients of a round reported, and what was believed."""
        self.latest = np.concatenate([self.latest, sizes])[-LATEST:]
        last = self.reports[slots][:, 1]
        self.reports[slots] = np.stack([last, reported], axis=1)

    def forget(self, slots: Integers) -> None:
        self.reports[slots] = 0.0
