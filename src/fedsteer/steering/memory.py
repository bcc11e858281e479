"""One d-sized row per client, for rules that keep N x d numbers.

`RowStore` holds the rows. `UpdateMemory` is what FedVARP, FedStale and MIFA share: the last update
h_i of every client, a scale beta_i on it, and the running sum of n_i beta_i h_i, with which a round
costs O(m d) instead of O(N d).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsteer.steering.clients import Clients
from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Array, Floats, Integers, Pass, kernels_for
from fedsteer.steering.rounds import Active
from fedsteer.steering.table import OUTWEIGHS, Table


@dataclass
class RowStore(Component):
    """(capacity, d) rows by slot, of the library and device of the first stored update."""

    rows: Array = None  # None before the first

    def reserve(self, slots: Integers, like: Array, expected: int) -> None:
        """Make room for these slots, the first time for at least `expected` members."""
        kernels, old, dim = kernels_for(like), self.rows, like.shape[1]
        needed = int(slots.max()) + 1 if len(slots) else 0
        if old is None:
            self.rows = kernels.allocate((max(needed, expected), dim), like)
        elif needed > len(old):
            self.rows = kernels.allocate((max(needed, 2 * len(old)), dim), old)
            self.rows[: len(old)] = old

    def write(self, slots: Integers, updates: Array, expected: int) -> None:
        self.reserve(slots, updates, expected)
        kernels_for(updates).store(self.rows, slots.tolist(), updates)


@dataclass
class UpdateMemory(Component):
    """h_i, beta_i and the running sum of n_i beta_i h_i."""

    store: RowStore = field(default_factory=RowStore)
    squares: Table = field(default_factory=lambda: Table.empty(0, fill=-1.0))  # |h_i|^2; -1: none
    scales: Table = field(default_factory=lambda: Table.empty(0))  # beta_i
    base: Array = None  # (d,) float64: float32 would drift over many rounds
    longest: float = 0.0  # square of the longest part of `base` since it was last summed anew
    heard: float = 0.0  # sum of n_i over clients with an h_i

    def heard_with(self, active: Active) -> float:
        """`heard` once these clients have an h_i."""
        before = np.where(self.squares[active.slots] >= 0, active.old_sizes, 0.0)
        return self.heard + float((active.sizes - before).sum())

    def recall(self, active: Active) -> Recalled:
        """Delta = t sum_i d_i beta_i h_i + sum_A a_i (g_i - t beta_i h_i), in one pass.

        The first sum runs over all clients with this round's sizes; t is the trust in all of them.
        """
        squares = self.squares[active.slots]
        known = squares >= 0
        scales = np.where(known, self.scales[active.slots], 0.0)
        per_point = 1.0 / active.total if active.total > 0 else 0.0
        grown = (active.sizes - active.old_sizes) * per_point
        coefficients = active.trust * scales * (grown - active.weights)
        result = active.one_pass(
            active.weights,
            self.store.rows if known.any() else None,
            coefficients[known],
            rows=active.slots[known],
            base=self.base,
            base_scale=active.trust * per_point,
        )
        dots = np.zeros(len(active))
        dots[known] = result.products[np.arange(int(known.sum())), np.flatnonzero(known)]
        return Recalled(
            result=result,
            known=known,
            dots=dots,
            squares=np.where(known, squares, 0.0),
            scales=scales,
        )

    def store_updates(
        self, active: Active, recalled: Recalled, scales: Floats, clients: Clients
    ) -> None:
        """h_i <- g_i and beta_i <- scales for the active clients."""
        if not len(active):
            return
        kernels, slots, known = active.kernels, active.slots, recalled.known
        updates = active.round.updates
        self.heard = self.heard_with(active)
        if self.base is None:
            self.base = kernels.allocate((updates.shape[1],), updates, "float64")
        if known.any():
            old = -(active.old_sizes * recalled.scales)[known]
            kernels.add_rows(self.base, old, self.store.rows, slots[known])
        self.store.write(slots, updates, len(clients.sizes.values))
        kernels.add_rows(self.base, active.sizes * scales, updates)
        before = (active.old_sizes * recalled.scales) ** 2 * recalled.squares
        after = (active.sizes * scales) ** 2 * recalled.result.squared_norms
        self.squares[slots] = recalled.result.squared_norms
        self.scales[slots] = scales
        self.longest = max(self.longest, float(before.max()), float(after.max()))
        if self.longest > OUTWEIGHS**2 * after.max():  # otherwise the sum is long enough, too
            self._restore_precision(clients, active)

    def forget(self, slots: Integers, clients: Clients) -> None:
        squares, leaving = self.squares[slots], clients.sizes[slots] * self.scales[slots]
        known = squares >= 0
        self.squares[slots] = -1.0
        self.heard = float(clients.sizes[np.flatnonzero(self.squares.values >= 0)].sum())
        if known.any():
            kernels_for(self.base).add_rows(
                self.base, -leaving[known], self.store.rows, slots[known]
            )
            self.longest = max(self.longest, float((leaving**2 * squares)[known].max()))
            self._restore_precision(clients)

    def _restore_precision(self, clients: Clients, active: Active | None = None) -> None:
        """Sum anew if a part that was once in `base` is far longer than what remains."""
        kernels, known = kernels_for(self.base), np.flatnonzero(self.squares.values >= 0)
        if self.longest <= OUTWEIGHS**2 * float((self.base * self.base).sum()):
            return
        self.longest = 0.0
        self.base[:] = 0.0
        sizes = clients.sizes_now(len(self.squares.values), active)
        weights = sizes[known] * self.scales[known]
        kernels.add_rows(self.base, weights, self.store.rows, known)

    def estimates(self, slots: Integers, like: Array) -> Array:
        """(m, d) beta_i h_i."""
        shape = (len(slots), like.shape[1])
        rows = kernels_for(like).allocate(shape, like)
        scales = self.scales[slots].tolist()
        for index in np.flatnonzero(self.squares[slots] >= 0).tolist():
            rows[index] = self.store.rows[slots[index]] * scales[index]
        return rows


@dataclass(frozen=True, kw_only=True)
class Recalled:
    """A pass over the active clients and their stored updates."""

    result: Pass
    known: Any  # (m,) bool: there was an h_i
    dots: Floats  # (m,) g_i . h_i
    squares: Floats  # (m,) |h_i|^2
    scales: Floats  # (m,) beta_i before this round
