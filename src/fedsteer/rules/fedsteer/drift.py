"""Drift correction from coordinates: SCAFFOLD's, out of N k numbers, for clients that keep nothing.

A client that takes K_i local steps of rate eta sends g_i, pi_i = eta K_i times a mean gradient.
With the clients seen so far, v_i = Q s_i / pi_i and v = sum n_i v_i / sum n_i,

    sent            c_i = alpha (v - v_i), which the client adds to each of its gradients
    kept            r_i = g_i - pi_i c_i, which coordinates and columns are made of
    expected        g^_i = (1 - alpha) Q s_i + alpha pi_i v
    of all clients  sum n_i g^_i = (1 - alpha) u + alpha v sum n_i pi_i

All of it is in coordinates: only c_i itself has d numbers. A client never seen is sent nothing.

pi_i is what a client says, and g^_i grows with it. So one that took more than ten times the usual
steps (the median of the latest hundred) counts as never seen: its pi_i is 0, and nothing of its
update is taken for a correction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Floats, Pass
from fedsteer.steering.table import Table
from fedsteer.steering.usual import LATEST, middle

if TYPE_CHECKING:
    from fedsteer.rules.fedsteer.columns import Geometry
    from fedsteer.rules.fedsteer.owners import ColumnRoles
    from fedsteer.steering.rounds import Active


TIMES = 10.0
"""A client that took so many times the usual steps takes no part in the correction."""


@dataclass
class Drift(Component):
    """What the correction needs beside the coordinates.

    `sums` are those of `Coordinates`: u, and sum n_i s_i / pi_i over the clients seen.
    """

    alpha: float
    paces: Table = field(default_factory=lambda: Table.empty(0))  # (N,) pi_i; 0: never seen
    points: float = 0.0  # sum of their n_i
    moved: float = 0.0  # sum of their n_i pi_i
    latest: Floats = field(default_factory=lambda: np.zeros(0))  # steps of the latest clients

    def corrections(self, paces: Floats, coordinates: Floats, sums: Floats) -> Floats:
        """(m, k) c_i of clients with these pi_i and s_i."""
        own = coordinates / np.where(paces > 0, paces, 1.0)[:, None]
        return np.where(paces[:, None] > 0, self.alpha * (self._mean(sums) - own), 0.0)

    def expected(self, paces: Floats, coordinates: Floats, sums: Floats) -> Floats:
        """(m, k) g^_i of clients with these pi_i and s_i."""
        towards = paces[:, None] * self._mean(sums)
        return (1.0 - self.alpha) * coordinates + self.alpha * towards

    def total(self, sums: Floats) -> Floats:
        """(k,) sum n_i g^_i over all clients."""
        return (1.0 - self.alpha) * sums[0] + self.alpha * self.moved * self._mean(sums)

    def in_round(
        self, active: Active, rate: float | None, coordinates: Floats, sums: Floats
    ) -> Corrected:
        """What clients with these s_i were expected to send, and what their corrections added."""
        assert rate is not None
        steps = active.round.steps if len(active.slots) else np.zeros(0)
        known = steps if not len(self.latest) else self.latest
        usual = middle(known) if len(known) else 0.0
        before, paces = self.paces[active.slots], rate * np.where(steps <= TIMES * usual, steps, 0)
        added = paces * active.fresh  # clients that are only refreshed are sent nothing
        if active.update_factors is not None:
            added = added * active.update_factors
        return Corrected(
            before=before,
            paces=paces,
            steps=steps,
            expected=self.expected(before, coordinates, sums),
            total=self.total(sums),
            added=added[:, None] * self.corrections(before, coordinates, sums),
        )

    def commit(self, active: Active, corrected: Corrected) -> tuple[Floats, Floats]:
        """Take in the paces; returns the (2, m) weights in `sums` before the round and after it."""
        old, new = active.old_sizes, active.sizes
        before, after = corrected.before, corrected.paces
        self.points += float(new[after > 0].sum() - old[before > 0].sum())
        self.moved += float(new @ after - old @ before)
        self.paces[active.slots] = after
        self.latest = np.concatenate([self.latest, corrected.steps])[-LATEST:]
        return _weights(old, before), _weights(new, after)

    def count(self, sizes: Floats) -> Floats:
        """Sum over all clients anew; returns their (2, N) weights in `sums`."""
        paces = self.paces[np.arange(len(sizes))]
        self.points, self.moved = float(sizes[paces > 0].sum()), float(sizes @ paces)
        return _weights(sizes, paces)

    def _mean(self, sums: Floats) -> Floats:
        """(k,) v."""
        return sums[1] / self.points if self.points > 0 else np.zeros_like(sums[1])


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """The active clients of a round, and what corrections did to their updates."""

    before: Floats  # (m,) pi_i at their last visit; 0: never seen
    paces: Floats  # (m,) pi_i, by this round's steps
    steps: Floats  # (m,)
    expected: Floats  # (m, k) g^_i
    total: Floats  # (k,) sum n_i g^_i over all clients
    added: Floats  # (m, k) pi_i c_i

    def take_out(self, result: Pass, geometry: Geometry, roles: ColumnRoles) -> Pass:
        """The products that r_i have in place of g_i."""
        raw = self.added * geometry.stored  # (m, k) factors of the raw columns
        on_columns = geometry.gram @ raw.T
        across = result.products.T @ raw.T  # (m, m) g_a . pi_b Q c_b
        lengths = result.squared_norms - 2 * across.diagonal()
        both = np.ix_(roles.gram_of, roles.gram_of)
        inner = result.gram - across[both] - across[both].T + (raw @ on_columns)[both]
        return replace(
            result,
            products=result.products - on_columns,
            squared_norms=np.maximum(lengths + np.vecdot(raw, on_columns.T), 0.0),
            gram=inner,
        )


def _weights(sizes: Floats, paces: Floats) -> Floats:
    """n_i, and n_i / pi_i for clients that were seen."""
    scaled = np.divide(sizes, paces, out=np.zeros(len(sizes)), where=paces > 0)
    return np.stack([sizes, scaled])
