"""What clients that never came are expected to send: a learnt share of what the others do.

With the estimates g^_i of the clients that came, which have P points of n,

    m = sum n_i g^_i / P                     their mean
    g^_i = beta m                            of a client that never came
    of all clients  (P + beta (n - P)) m
    beta = sum g_i . m / sum |m|^2           over first visits, within [0, 1]

Zero, which the paper expects of them, shortens the first steps and leans them towards clients that
come often. How much the others tell of a newcomer depends on the federation, so it is learnt from
newcomers; beta is known before the round, which keeps Delta unbiased. All of it is in coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Flags, Floats, Pass

if TYPE_CHECKING:
    from fedsteer.rules.fedsteer.columns import Geometry
    from fedsteer.steering.rounds import Active


@dataclass
class Newcomers(Component):
    """What first visits told of beta."""

    points: float = 0.0  # P
    agreement: float = 0.0  # sum g_i . m
    length: float = 0.0  # sum |m|^2

    @property
    def share(self) -> float:
        """beta."""
        return min(max(self.agreement / self.length, 0.0), 1.0) if self.length > 0 else 0.0

    def mean(self, total: Floats) -> Floats:
        """(k,) m, if `total` is sum n_i g^_i over the clients that came."""
        return total / self.points if self.points > 0 else np.zeros_like(total)

    def fill_in(self, new: Flags, expected: Floats, total: Floats) -> Floats:
        """(m, k) `expected`, with beta m for clients that are new."""
        return np.where(new[:, None], self.share * self.mean(total), expected)

    def foresee(self, active: Active, expected: Floats, total: Floats) -> tuple[Floats, Floats]:
        """(m, k) g^_i of a round, and (k,) sum n_i g^_i over all clients with its sizes.

        expected   (m, k) of the active clients; of newcomers it is not used
        total      (k,) of the clients that came before, with their sizes so far
        """
        expected = self.fill_in(active.new, expected, total)
        growth = np.where(active.new, 0.0, active.sizes - active.old_sizes)
        unseen = max(active.total - self.points - float(growth.sum()), 0.0)
        return expected, total + growth @ expected + self.share * unseen * self.mean(total)

    def commit(self, active: Active, total: Floats, result: Pass, geometry: Geometry) -> None:
        """Learn from first visits; `total` is of the clients that came before the round."""
        raw = self.mean(total) * geometry.stored
        if length := float(raw @ geometry.gram @ raw):
            self.agreement += float((raw @ result.products[:, active.new]).sum())
            self.length += length * int(active.new.sum())
        self.points += float(active.sizes.sum() - active.old_sizes[~active.new].sum())
