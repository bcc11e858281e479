"""What FedSteer remembers, and what it expects of clients by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.rules.fedsteer.columns import Columns
from fedsteer.rules.fedsteer.coordinates import Coordinates
from fedsteer.rules.fedsteer.drift import Corrected, Drift
from fedsteer.rules.fedsteer.newcomers import Newcomers
from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Flags, Floats, Integers
from fedsteer.steering.table import Table

if TYPE_CHECKING:
    from fedsteer.rules.fedsteer.options import FedSteerOptions
    from fedsteer.rules.fedsteer.owners import Owners
    from fedsteer.steering.clients import Clients
    from fedsteer.steering.rounds import Active


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the clients were expected to send, in coordinates."""

    stored: Floats  # (m, k) s_i of the active clients
    active: Floats  # (m, k) g^_i of the active clients
    total: Floats  # (k,) sum n_i g^_i over all clients, with this round's sizes
    came: Floats  # (k,) the same of clients that came before, with their sizes so far
    corrected: Corrected | None  # what corrections did to the updates; None: nothing


@dataclass
class FedSteerMemory(Component):
    """k d + N k numbers, and sketches if it re-selects."""

    columns: Columns
    coordinates: Coordinates
    sketches: Table | None = None  # (N, width), for reselect_every
    drift: Drift | None = None  # None: clients correct nothing
    newcomers: Newcomers | None = None  # None: they are expected to send nothing

    @staticmethod
    def empty(options: FedSteerOptions, owners: Owners, clients: Clients) -> FedSteerMemory:
        """Vacant columns for these owners, and zero coordinates for the members."""
        drift = Drift(options.alpha) if options.alpha else None
        return FedSteerMemory(
            columns=Columns.vacant(
                owners, basis=options.basis, magnitude=options.magnitude, cache=options.cache
            ),
            coordinates=Coordinates.zero(
                size=len(owners),
                members=len(clients.sizes.values),
                sums=1 if drift is None else 2,
            ),
            drift=drift,
            newcomers=Newcomers() if options.newcomers == "learnt" else None,
        )

    def expect(self, active: Active, local_rate: float | None) -> Expected:
        """What was expected of a round, before its updates are read."""
        sums, stored = self.coordinates.sums, self.coordinates.read(active.slots)
        expected, came, corrected = stored, sums[0], None
        if self.drift is not None:
            corrected = self.drift.in_round(active, local_rate, stored, sums)
            expected, came = corrected.expected, corrected.total
        if self.newcomers is not None:
            expected, total = self.newcomers.foresee(active, expected, came)
        else:
            total = came + (active.sizes @ expected - active.old_sizes @ expected)
        return Expected(stored=stored, active=expected, total=total, came=came, corrected=corrected)

    def estimates(self, slots: Integers, new: Flags) -> Floats:
        """(m, k) g^_i of these clients today; the `new` ones never came."""
        sums, expected = self.coordinates.sums, self.coordinates.read(slots)
        came = sums[0]
        if self.drift is not None:
            expected = self.drift.expected(self.drift.paces[slots], expected, sums)
            came = self.drift.total(sums)
        if self.newcomers is not None:
            expected = self.newcomers.fill_in(new, expected, came)
        return expected

    def forget(self, slots: Integers, sizes: Floats, clients: Clients) -> None:
        """Coordinates, and what goes with them, of clients that leave."""
        self.coordinates.write(slots, np.zeros((len(slots), len(self.columns.owners))))
        if self.drift is not None:
            self.drift.paces[slots] = 0.0
        if self.newcomers is not None:
            self.newcomers.points -= float(sizes[clients.came(slots)].sum())
        if self.sketches is not None:
            self.sketches[slots] = 0.0
        self.sum_anew(clients)

    def sum_anew(self, clients: Clients, active: Active | None = None) -> None:
        """All running sums, from all clients."""
        sizes = clients.sizes_now(len(self.coordinates.stored.values), active)
        weights = sizes[None] if self.drift is None else self.drift.count(sizes)
        self.coordinates.sum_anew(weights)
