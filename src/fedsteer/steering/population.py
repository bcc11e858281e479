"""How large an open population is: n, the number of data points of all its clients.

    n = max(mean over rounds of sum_A n_i/p_i,  points of the clients seen + points surely unseen)

The mean is unbiased from the first round on if p_i are known. It forgets rounds more than MEMORY
ago, and counts every round with the sizes of today. It falls behind when the population grows, and
shrinks when clients stop answering; then the second part holds. What is unseen follows from the
newcomers of a round, which on average stand for all of it if each counts 1/p_i times; only what
exceeds its own standard deviation counts.

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
MEMORY = 200
"""Rounds that the mean remembers."""


@dataclass
class PopulationEstimate(Component):
    """What the rounds so far tell of the points of an open population. Never changed in place."""

    mean: float = 0.0  # over rounds of sum_A n_i / p_i, with p_i and n_i as of today
    rounds: int = 0  # that the mean is over, at most MEMORY
    fade: float = 1.0  # what a round long past counts for, of what it counted for at first
    unseen: float = 0.0  # points of members that never took part
    doubt: float = 0.0  # standard deviation of `unseen`

    def total(self, seen: float) -> float:
        """n, if the clients seen so far have `seen` points."""
        return max(self.mean, seen + max(self.unseen - self.doubt, 0.0))

    def grown(self, points: float) -> PopulationEstimate:
        """With this many points more in every past round, or fewer."""
        return replace(self, mean=max(self.mean + points, 0.0))

    def after(
        self,
        *,
        sizes: Floats,
        old_sizes: Floats,
        inverse_probabilities: Floats,
        fresh: Flags,
        drift: float,
    ) -> PopulationEstimate:
        """The estimate once a training round with these clients has ended.

        The mean so far must have `grown` to their sizes of today. `drift` is the factor from the
        last round's 1/p_i to today's (`ProbabilitySource.drift`).
        """
        stands_for, new = sizes * inverse_probabilities, old_sizes <= 0
        rounds = min(self.rounds + 1, MEMORY)
        before = self.mean * drift
        came = new & fresh
        share = NEWCOMERS if self.rounds else 1.0
        kept = (1.0 - share) * drift
        unseen = kept * self.unseen + share * float(stands_for[came].sum())
        absent = np.maximum(1.0 - 1.0 / inverse_probabilities[came], 0.0)  # 1 - p_i
        spread = share * stands_for[came] * np.sqrt(absent)
        return PopulationEstimate(
            mean=before + (float(stands_for[fresh].sum()) - before) / rounds,
            rounds=rounds,
            fade=self.fade * drift * (1.0 - 1.0 / rounds) if rounds > 1 else 1.0,
            unseen=max(unseen - float(sizes[new].sum()), 0.0),
            doubt=math.hypot(kept * self.doubt, *spread.tolist()),
        )
