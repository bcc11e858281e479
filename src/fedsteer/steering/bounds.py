"""Bounds on the length of updates, of the aggregate, and on reported numbers of data points.

    update_bound   g_i <- g_i min(1, (c r_i / |g_i|)^2),   r_i = max(r, min(l_i, 4 r))
    norm_bound     Delta <- Delta min(1, rho b / |Delta|),   b = sum_i d_i |g_i| >= |sum_i d_i g_i|
    size_bound     n_i <- min(median of i's last three reports, c max(n_i before, s))

r and s are the medians of the latest 100 lengths and sizes, and l_i is the length of client i's
last update as it came. Of two in the middle the smaller is the median, so one of the first two
clients cannot raise it. All of it is known before the round (in the first one r and s are the
round's own medians), so it does not matter who else takes part: the aggregate stays unbiased for
the shortened updates. The longer an update is beyond c r_i, the shorter it becomes. A number of
data points that differs from those before it counts once the next visit confirms it; otherwise one
wrong number would weigh in every round until its client is back. Of two the smaller one counts.

b uses the last known norm of each client, this round's included; clients without one count with the
mean of the others, weighted by size. It is biased whenever it acts, so every step reports its
factor. The sum over all clients is kept running in two numbers. In one, a single update 10^18 times
as long as the others would leave nothing but its rounding error.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Floats, Integers
from fedsteer.steering.table import Table
from fedsteer.steering.usual import LATEST, middle

TRUSTED = 4.0
"""A client's own updates raise the usual length at most this many times."""


@dataclass
class NormBound(Component):
    """Known norms by slot with their running weighted sum, and those of the latest updates."""

    factor: float | None = None  # rho; None: the aggregate has no bound
    times: float | None = None  # c; None: single updates have none
    # Length of the last update as it was used, and as it came (l_i); -1: never known.
    norms: Table = field(default_factory=lambda: Table.empty(0, 2, fill=-1.0))
    weighted: float = 0.0  # sum of n_i |g_i| over clients with a known norm
    weight: float = 0.0  # sum of n_i over them
    rest: float = 0.0  # rounding error of `weighted`
    latest: Floats = field(default_factory=lambda: np.zeros(0))
    longest: float = 0.0  # c r; 0: not known yet

    def shortening(self, slots: Integers, norms: Floats) -> Floats:
        """The factors that shorten updates of these norms; 1 for those that are short enough."""
        longest = self.longest or self._longest_of(norms)
        if not longest or self.times is None:
            return np.ones(len(norms))
        own = np.clip(self.times * self.norms[slots][:, 1], longest, TRUSTED * longest)
        return (own / np.maximum(norms, own)) ** 2

    def judge(
        self, delta_norm: float, slots: Integers, norms: Floats, old_sizes: Floats, sizes: Floats
    ) -> float:
        """min(1, rho b / |Delta|), where b counts these clients with these norms and sizes."""
        weighted, _, weight = self._with(slots, norms, old_sizes, sizes)
        if self.factor is None or weight <= 0.0 or delta_norm <= 0.0:
            return 1.0
        return min(1.0, self.factor * weighted / weight / delta_norm)

    def keep(
        self, slots: Integers, norms: Floats, old_sizes: Floats, sizes: Floats, whole: Floats
    ) -> None:
        """Take in norms and sizes of a round; `whole` are the norms of the updates as they came."""
        self.weighted, self.rest, self.weight = self._with(slots, norms, old_sizes, sizes)
        self.norms[slots] = np.stack([norms, whole], axis=1)
        if self.times is not None:
            self.latest = np.concatenate([self.latest, whole])[-LATEST:]
            self.longest = self._longest_of(self.latest)

    def forget(self, slots: Integers, sizes: Floats) -> None:
        nothing = np.zeros(len(slots))
        self.weighted, self.rest, self.weight = self._with(slots, nothing, sizes, nothing)
        self.norms[slots] = np.full((len(slots), 2), -1.0)

    def _longest_of(self, norms: Floats) -> float:
        return (self.times or math.inf) * float(middle(norms)) if len(norms) else 0.0

    def _with(
        self, slots: Integers, norms: Floats, old_sizes: Floats, sizes: Floats
    ) -> tuple[float, float, float]:
        """`weighted`, `rest` and `weight` with the new norms and sizes of these clients."""
        old = self.norms[slots][:, 0]
        known = old >= 0
        less = (old_sizes * old)[known]
        parts = [self.weighted, self.rest, *(sizes * norms).tolist(), *(-less).tolist()]
        weighted = math.fsum(parts)
        weight = self.weight + float(sizes.sum() - old_sizes[known].sum())
        return weighted, math.fsum([*parts, -weighted]), weight


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
        usual = middle(self.latest if len(self.latest) else reported)
        limit = self.times * np.maximum(old_sizes, usual)
        return np.minimum(np.median([earlier, last, reported], axis=0), limit)

    def keep(self, slots: Integers, reported: Floats, sizes: Floats) -> None:
        """What the clients of a round reported, and what was believed."""
        self.latest = np.concatenate([self.latest, sizes])[-LATEST:]
        last = self.reports[slots][:, 1]
        self.reports[slots] = np.stack([last, reported], axis=1)

    def forget(self, slots: Integers) -> None:
        self.reports[slots] = 0.0
