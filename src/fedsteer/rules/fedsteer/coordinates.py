"""What FedSteer keeps of every client: its k coordinates, and their weighted sum.

    s_i                    coordinates of client i, written when it takes part
    u = sum_i n_i s_i      kept running, so that a round costs O(m k) and not O(N k)

If a column of the basis changes hands, every s_i becomes M s_i. Maps are stored once and applied
to a client when it is next read; after MOST_MAPS of them one sweep applies all to everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Floats, Integers
from fedsteer.steering.table import OUTWEIGHS, Table

if TYPE_CHECKING:
    from fedsteer.steering.clients import Clients
    from fedsteer.steering.rounds import Active

MOST_MAPS = 64
"""Bounds the memory of pending maps, and the work of reading a client."""


@dataclass
class Coordinates(Component):
    """The coordinates of all clients, and their weighted sum."""

    stored: Table  # (N, k) s_i as written
    versions: Table  # (N,) how many maps there were when s_i was written
    maps: Floats  # (v, k, k) maps not yet applied to everybody
    total: Floats  # (k,) u, in today's basis
    longest: float = 0.0  # largest squared length of what was taken out of `total`

    @staticmethod
    def zero(*, size: int, members: int) -> Coordinates:
        """No coordinates yet, and room for the clients known now."""
        return Coordinates(
            stored=Table.empty(members, size),
            versions=Table.empty(members, dtype="int64"),
            maps=np.zeros((0, size, size)),
            total=np.zeros(size),
        )

    def read(self, slots: Integers) -> Floats:
        """(m, k) s_i in today's basis; zero for clients that were never written."""
        found: Floats = self.stored[slots]  # a copy
        if len(self.maps):
            written = self.versions[slots]
            for version, change in enumerate(self.maps):
                behind = written <= version
                found[behind] = found[behind] @ change.T
        return found

    def write(self, slots: Integers, coordinates: Floats) -> None:
        """s_i <- coordinates, in today's basis. The caller keeps `total` right."""
        self.stored[slots] = coordinates
        if len(self.maps):  # otherwise every version is 0
            self.versions[slots] = len(self.maps)

    def total_with(self, active: Active, *, old: Floats, new: Floats) -> Floats:
        """u if the active clients, with this round's sizes, have `new` in place of `old`."""
        return self.total + active.sizes @ new - active.old_sizes @ old

    def replace(self, active: Active, *, old: Floats, new: Floats, clients: Clients) -> None:
        """Store what the active clients have from now on."""
        self.write(active.slots, new)
        self.total = self.total_with(active, old=old, new=new)
        self._restore_precision(active.old_sizes @ old, clients, active)

    def erase(self, slots: Integers, sizes: Floats, clients: Clients) -> None:
        """These clients leave; `sizes` are the weights they had."""
        leaving = sizes @ self.read(slots)
        self.write(slots, np.zeros((len(slots), len(self.total))))
        self.total = self.total - leaving
        self._restore_precision(leaving, clients)

    def change_basis(self, change: Floats) -> None:
        """s_i <- M s_i for every client, where M is `change`."""
        self.maps = np.concatenate([self.maps, change[None]])
        self.total = change @ self.total
        if len(self.maps) >= MOST_MAPS:
            everyone = np.arange(len(self.stored.values))
            current = self.read(everyone)
            self.maps = self.maps[:0]
            self.versions.values[:] = 0
            self.stored[everyone] = current

    def _restore_precision(
        self, removed: Floats, clients: Clients, active: Active | None = None
    ) -> None:
        """Sum over all clients again, in O(N), if rounding could show in what is left of u."""
        self.longest = max(self.longest, float(removed @ removed))
        if self.longest > OUTWEIGHS**2 * float(self.total @ self.total):
            self.longest = 0.0
            count = len(self.stored.values)
            self.total = clients.sizes_now(count, active) @ self.read(np.arange(count))
