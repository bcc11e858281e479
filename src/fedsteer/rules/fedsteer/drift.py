"""Drift correction from coordinates: SCAFFOLD's, out of N k numbers, for clients that keep nothing.

A client that takes K_i local steps of rate eta sends g_i, pi_i = eta K_i times a mean gradient.
With the clients seen so far, v_i = Q s_i / pi_i and v = sum n_i v_i / sum n_i,

    sent            c_i = alpha (v - v_i), which the client adds to each of its gradients
    kept            r_i = g_i - pi_i c_i, which coordinates and columns are made of
    expected        g^_i = (1 - alpha) Q s_i + alpha pi_i v
    of everybody    sum n_i g^_i = (1 - alpha) u + alpha v sum n_i pi_i

All of it is in coordinates: only c_i itself has d numbers. A client never seen is sent nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.errors import RoundRefused
from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Floats, Integers, Pass
from fedsteer.steering.table import OUTWEIGHS, Table

if TYPE_CHECKING:
    from fedsteer.rules.fedsteer.coordinates import Coordinates
    from fedsteer.rules.fedsteer.geometry import Geometry
    from fedsteer.rules.fedsteer.roles import ColumnRoles
    from fedsteer.steering.clients import Clients
    from fedsteer.steering.rounds import Active


@dataclass
class Drift(Component):
    """What the correction needs beside the coordinates."""

    alpha: float
    total: Floats  # (k,) sum n_i s_i / pi_i over the clients seen, in today's basis
    paces: Table = field(default_factory=lambda: Table.empty(0))  # (N,) pi_i; 0: never seen
    points: float = 0.0  # sum of their n_i
    moved: float = 0.0  # sum of their n_i pi_i

    def corrections(self, slots: Integers, coordinates: Floats) -> Floats:
        """(m, k) c_i of clients with these s_i."""
        paces = self.paces[slots][:, None]
        own = coordinates / np.where(paces > 0, paces, 1.0)
        corrections: Floats = np.where(paces > 0, self.alpha * (self._mean() - own), 0.0)
        return corrections

    def expected(self, slots: Integers, coordinates: Floats) -> Floats:
        """(m, k) g^_i of clients with these s_i."""
        towards = self.paces[slots][:, None] * self._mean()
        expected: Floats = (1.0 - self.alpha) * coordinates + self.alpha * towards
        return expected

    def sent(self, active: Active, rate: float | None, coordinates: Floats) -> Sent:
        """What the corrections of clients with these s_i added to the updates of a round."""
        steps = active.round.steps
        if steps is None:
            if len(active):
                raise RoundRefused("drift needs steps: each client's number of local steps")
            steps = np.zeros(0)
        assert rate is not None
        paces = rate * steps
        added = paces * active.fresh  # clients that are only refreshed are sent nothing
        if active.update_factors is not None:
            added = added * active.update_factors
        corrections = self.corrections(active.slots, coordinates)
        return Sent(paces=paces, coordinates=added[:, None] * corrections)

    def expected_of_everybody(self, total: Floats) -> Floats:
        """(k,) sum n_i g^_i, where u is `total`."""
        return (1.0 - self.alpha) * total + self.alpha * self.moved * self._mean()

    def replace(
        self,
        active: Active,
        paces: Floats,
        *,
        old: Floats,
        new: Floats,
        everyone: Coordinates,
        clients: Clients,
    ) -> None:
        """Take in a round in which `everyone` got `new` coordinates in place of `old` ones."""
        before, sizes = self.paces[active.slots], active.old_sizes
        known = before > 0
        leaving = np.divide(sizes, before, out=np.zeros(len(before)), where=known) @ old
        self.total = self.total - leaving + (active.sizes / paces) @ new
        self.points += float(active.sizes.sum() - sizes[known].sum())
        self.moved += float(active.sizes @ paces - sizes @ before)
        self.paces[active.slots] = paces
        if leaving @ leaving > OUTWEIGHS**2 * float(self.total @ self.total):
            self._sum_anew(everyone, clients.sizes_now(len(everyone.stored.values), active))

    def forget(self, slots: Integers, *, everyone: Coordinates, clients: Clients) -> None:
        self.paces[slots] = 0.0
        self._sum_anew(everyone, clients.sizes_now(len(everyone.stored.values)))

    def _sum_anew(self, everyone: Coordinates, sizes: Floats) -> None:
        """The sums from all clients, in O(N)."""
        slots = np.arange(len(sizes))
        paces = self.paces[slots]
        known = np.where(paces > 0, sizes, 0.0)
        self.total = (known / np.where(paces > 0, paces, 1.0)) @ everyone.read(slots)
        self.points, self.moved = float(known.sum()), float(known @ paces)

    def _mean(self) -> Floats:
        """(k,) v."""
        return self.total / self.points if self.points > 0 else np.zeros_like(self.total)


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What corrections added to the updates of a round."""

    paces: Floats  # (m,) pi_i, by this round's steps
    coordinates: Floats  # (m, k) pi_i c_i

    def take_out(self, result: Pass, geometry: Geometry, roles: ColumnRoles) -> Pass:
        """The products that r_i have in place of g_i."""
        raw = self.coordinates * geometry.stored  # (m, k) factors of the raw columns
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
