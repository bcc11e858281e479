"""How large an open population is: n, the number of data points of all its clients.

n is the running mean over rounds of sum_A n_i/p_i. For known p_i it estimates the size of the whole
population without bias from the first round on; the sum over the clients seen so far would give the
first rounds far too much weight.

The mean falls behind when the population grows. So n is at least the sum over the clients seen so
far plus what is surely still unseen. Newcomers tell how much that is: the newcomers of a round,
each counted 1/p_i times, stand on average for everything that was unseen before. This varies from
round to round, most of all if some clients are rare; so it is smoothed (`NEWCOMERS`), and only what
exceeds its own standard deviation counts. If nothing grows, this makes n larger by one or two
percent; if clients take turns, nearly twice as large until each of them had one. The sum also holds
when clients stop answering: the mean would then shrink, and the baseline grow without end.

Algorithms that do not use p_i have no such estimate; their n is the sum over clients seen so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Flags, Floats

NEWCOMERS = 0.25
"""Weight of the latest round, against all before it, in what newcomers tell of the unseen."""


@dataclass
class PopulationEstimate(Component):
    """What the rounds so far tell of the points of an open population. Never changed in place."""

    mass: float = 0.0  # sum over rounds of sum_A n_i / p_i, with p_i as of today
    unseen: float = 0.0  # points of members that never took part
    doubt: float = 0.0  # standard deviation of `unseen`

    def total(self, rounds: int, seen: float) -> float:
        """n after this many training rounds, if the clients seen so far have `seen` points."""
        return max(self.mass / rounds, seen + max(self.unseen - self.doubt, 0.0))

    def without(self, points: float, rounds: int) -> PopulationEstimate:
        """Clients with this many points left; every past round counted them."""
        return replace(self, mass=max(self.mass - rounds * points, 0.0))

    def after(
        self,
        *,
        sizes: Floats,
        old_sizes: Floats,
        inverse_probabilities: Floats,
        fresh: Flags,
        drift: float,
        first: bool,
    ) -> PopulationEstimate:
        """The estimate once a round with these clients has ended.

        drift   factor from the last round's 1/p_i to today's (`ProbabilitySource.drift`)
        first   whether it is the first training round
        """
        stands_for, new = sizes * inverse_probabilities, old_sizes <= 0
        came = new & fresh
        share = 1.0 if first else NEWCOMERS
        before = (1.0 - share) * drift
        unseen = before * self.unseen + share * float(stands_for[came].sum())
        absent = np.maximum(1.0 - 1.0 / inverse_probabilities[came], 0.0)  # 1 - p_i
        spread = share * stands_for[came] * np.sqrt(absent)
        return PopulationEstimate(
            mass=self.mass * drift + float(stands_for[fresh].sum()),
            unseen=max(unseen - float(sizes[new].sum()), 0.0),
            doubt=math.hypot(before * self.doubt, *spread.tolist()),
        )
