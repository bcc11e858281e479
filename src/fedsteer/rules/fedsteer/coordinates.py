"""What FedSteer keeps of every client: its k coordinates, and their weighted sums.

    s_i                    coordinates of client i, written when it takes part
    u = sum_i n_i s_i      kept running, so that a round costs O(m k) and not O(N k)

With drift correction there is a second sum, with weights n_i/pi_i. If a column of the basis changes
hands, every s_i becomes M s_i. Maps are stored once and applied to a client when it is next read;
after MOST_MAPS of them one sweep applies all to every client.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Floats, Integers
from fedsteer.steering.table import OUTWEIGHS, Table

MOST_MAPS = 64
"""Bounds the memory of pending maps, and the work of reading a client."""


@dataclass
class Coordinates(Component):
    """The coordinates of all clients, and their w weighted sums."""

    stored: Table  # (N, k) s_i as written
    versions: Table  # (N,) how many maps there were when s_i was written
    maps: Floats  # (v, k, k) maps not yet applied to every client
    sums: Floats  # (w, k) u, and the sum for drift correction, in today's basis
    longest: Floats  # (w,) largest squared length of what was taken out of each sum

    @staticmethod
    def zero(*, size: int, members: int, sums: int = 1) -> Coordinates:
        """No coordinates yet, and room for the clients known now."""
        return Coordinates(
            stored=Table.empty(members, size),
            versions=Table.empty(members, dtype="int64"),
            maps=np.zeros((0, size, size)),
            sums=np.zeros((sums, size)),
            longest=np.zeros(sums),
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
        """s_i <- coordinates, in today's basis. The caller keeps the sums right."""
        self.stored[slots] = coordinates
        if len(self.maps):  # otherwise every version is 0
            self.versions[slots] = len(self.maps)

    def replace(
        self, slots: Integers, *, old: Floats, new: Floats, old_weights: Floats, weights: Floats
    ) -> bool:
        """s_i <- new, in the sums with (w, m) `weights` in place of `old_weights`.

        Returns whether rounding could show in what is left of a sum.
        """
        self.write(slots, new)
        removed = old_weights @ old
        self.sums = self.sums + weights @ new - removed
        self.longest = np.maximum(self.longest, np.vecdot(removed, removed))
        left = np.vecdot(self.sums, self.sums)
        return bool((self.longest > OUTWEIGHS**2 * left).any())

    def sum_anew(self, weights: Floats) -> None:
        """The sums from all clients, with these (w, N) weights."""
        self.sums = weights @ self.read(np.arange(weights.shape[1]))
        self.longest = np.zeros(len(weights))

    def change_basis(self, change: Floats) -> None:
        """s_i <- M s_i for every client, where M is `change`."""
        self.maps = np.concatenate([self.maps, change[None]])
        self.sums = self.sums @ change.T
        if len(self.maps) >= MOST_MAPS:
            everyone = np.arange(len(self.stored.values))
            current = self.read(everyone)
            self.maps = self.maps[:0]
            self.versions.values[:] = 0
            self.stored[everyone] = current
