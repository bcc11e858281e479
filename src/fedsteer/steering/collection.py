"""Collecting one update of every client while the model stands still, cycle by cycle.

Clients are asked as they become available: at p = .04, waiting once for 100 clients takes about 111
rounds, and the snapshot is N x d.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsteer.steering.clients import Clients
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats, Integers, Pass, kernels_for
from fedsteer.steering.memory import RowStore
from fedsteer.steering.rounds import Active
from fedsteer.steering.table import Table


@dataclass(frozen=True)
class Collected:
    """A complete snapshot: the latest update of every member, all from one model."""

    slots: Integers
    rows: Array  # (capacity, d), by slot
    sizes: Floats  # n_i
    probabilities: Floats  # p_i as used when the client answered

    @property
    def shares(self) -> Floats:
        """d_i = n_i / n."""
        shares: Floats = self.sizes / self.sizes.sum()
        return shares

    def gram(self, columns: slice = slice(None)) -> Floats:
        """(N, N) in the order of `slots`."""
        part = self._members()[:, columns]
        return kernels_for(part).products(part, part)

    def sketch(self, width: int, seed: int) -> Floats:
        """(N, width) in the order of `slots`."""
        return kernels_for(self.rows).sketch(self._members(), width, seed)

    def _members(self) -> Array:
        # Usually every row is a member's: then nothing needs to be copied.
        everyone = np.array_equal(self.slots, np.arange(len(self.rows)))
        return self.rows if everyone else self.rows[self.slots]


@dataclass
class Collection(Component):
    """How far the collecting is."""

    cycles: int
    done: int = 0
    snapshot: RowStore = field(default_factory=RowStore)
    inverse: Table = field(default_factory=lambda: Table.empty(0))  # 1/p_i; 0: not yet answered

    @property
    def over(self) -> bool:
        """Whether the last cycle is complete."""
        return self.done >= self.cycles

    def asked(self, clients: Clients, available: Sequence[ClientId]) -> tuple[ClientId, ...]:
        """The available clients that have not answered in this cycle."""
        slots = clients.roster.preview(available)
        missing = self.inverse[slots] <= 0
        return tuple(c for c, due in zip(available, missing, strict=True) if due)

    def compute(self, clients: Clients, active: Active) -> tuple[Pass, bool]:
        """Nothing (a zero delta), or sum_i d_i g_i if this round completes the snapshot."""
        members = self._members(clients)
        missing = members[self.inverse[members] <= 0]
        complete = bool(len(members)) and bool(np.isin(missing, active.slots).all())
        if not complete:
            return active.one_pass(np.zeros(len(active))), False
        others = np.setdiff1d(members, active.slots)
        coefficients = clients.sizes[others] / active.total
        rows = self.snapshot.rows if len(others) else None
        result = active.one_pass(active.shares, rows, coefficients, rows=others)
        return result, True

    def commit(self, clients: Clients, active: Active, *, complete: bool) -> Collected | None:
        """Keep the updates. Returns the snapshot if it is complete now."""
        if len(active):
            self.snapshot.write(active.slots, active.round.updates, len(clients.sizes.values))
            self.inverse[active.slots] = active.inverse_probabilities
        if not complete:
            return None
        members = np.union1d(self._members(clients), active.slots)
        sizes = clients.sizes_now(int(members[-1]) + 1, active)
        collected = Collected(
            slots=members,
            rows=self.snapshot.rows,
            sizes=sizes[members],
            probabilities=1.0 / self.inverse[members],
        )
        self.inverse.values[:] = 0.0
        self.done += 1
        if self.over:
            self.snapshot = RowStore()
        return collected

    def forget(self, slots: Integers) -> None:
        """These clients leave: stop waiting for them."""
        self.inverse[slots] = 0.0

    @staticmethod
    def _members(clients: Clients) -> Integers:
        return np.flatnonzero(clients.sizes.values > 0)
