"""FedSteer: old coordinates on today's basis (UAI 2026, Algorithm 1).

The latest updates h_j of a small core set X are the basis, Q = [h_j / |h_j|]. Of every client only
its k coordinates s_i are kept. With K = Q^T Q, a round with active clients A does

    1  estimate          g^_i = Q s_i                                    for every client
    2  aggregate         Delta = sum_i d_i g^_i + sum_A d_i/p_i (g_i - g^_i)
    3  coordinates       s_i <- (K + lambda I)^-1 Q^T g_i                for i in A, this round's Q
    4  basis             h_i <- g_i                                      for i in A and X

Step 3 after step 2 keeps Delta unbiased (Proposition 1); refresh="before" is the other reading of
Section 2.2.2. Steps 1 and 2 are computed as Delta = Q c + sum_A d_i/p_i g_i, where
c = u/n - sum_A d_i/p_i s_i and u = sum_i n_i s_i is kept running. c is known before the updates are
read, so one pass over them yields Delta and every product that steps 3 and 4 need.
Time O((k + m) d), memory O(k d + N k).

With coordinates="own" (s_i = own_scale |h_i| e_i, X = everybody) this is FedVARP, or FedStale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from fedsteer.rules.algorithm import Algorithm, Memory, Outcome, Requests
from fedsteer.rules.fedsteer.columns import Columns
from fedsteer.rules.fedsteer.coordinates import Coordinates
from fedsteer.rules.fedsteer.geometry import SteeredBeliefs
from fedsteer.rules.fedsteer.options import FedSteerOptions
from fedsteer.rules.fedsteer.roles import ColumnRoles, column_roles, fill_vacant
from fedsteer.rules.fedsteer.selection import Owners, first_owners, owners_after_cycle, reselect
from fedsteer.rules.options import Options
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats, Pass
from fedsteer.steering.table import Table

if TYPE_CHECKING:
    from fedsteer.steering.clients import Clients
    from fedsteer.steering.collection import Collected
    from fedsteer.steering.rounds import Active


@dataclass
class FedSteerMemory(Component):
    """What FedSteer remembers: k d + N k numbers, and sketches if it re-selects."""

    columns: Columns
    coordinates: Coordinates
    sketches: Table | None = None  # (N, width), for reselect_every


@dataclass(frozen=True, kw_only=True)
class Computed:
    """What one round hands from `compute` to `commit`."""

    roles: ColumnRoles
    old: Floats  # (m, k) coordinates before this round
    new: Floats  # (m, k) and after it


@final
class FedSteer(Algorithm):
    """Old coordinates on today's basis."""

    name: ClassVar[str] = "fedsteer"
    options_type: ClassVar[type[Options]] = FedSteerOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"practical": {"select": "online"}}
    state_options: ClassVar[tuple[str, ...]] = (
        "core_set",
        "core_size",
        "select",
        "basis",
        "magnitude",
        "cache",
        "reselect_every",
        "sketch_width",
    )
    options: FedSteerOptions

    def begin(self, clients: Clients) -> Component:
        memory = self._empty(first_owners(self.options, clients), clients)
        if self.options.reselect_every:
            memory.sketches = Table.empty(0, self.options.width)
        return memory

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        every = self.options.refresh_all_every
        if every is None or (memory.clients.rounds + 1) % every:
            return asked
        if reachable is None:
            reachable = memory.clients.members() if memory.clients.closed else ()
        training = set(asked.train)
        return replace(asked, refresh=tuple(c for c in reachable if c not in training))

    def compute(self, memory: Memory, active: Active) -> Outcome:
        own: FedSteerMemory = memory.own
        every = self.options.reselect_every
        reselecting = every is not None and (memory.clients.rounds + 1) % every == 0
        roles = column_roles(own.columns.owners, active, reselecting=reselecting)
        old = used = own.coordinates.read(active.slots)
        if self.options.refresh == "after":
            result = self._aggregate(own, active, roles, old=old, used=old)  # steps 1 and 2
            new = self._solve(own, result, roles)  # step 3
        else:
            glance = self._sweep(own, active, roles, np.zeros_like(own.coordinates.total))
            new = used = self._solve(own, glance, roles)
            result = self._aggregate(own, active, roles, old=old, used=new)
        return Outcome(
            result=result,
            weights=active.weights,
            core_set=tuple(owner for owner in own.columns.owners if owner is not None),
            beliefs=SteeredBeliefs(
                geometry=own.columns.geometry, products=result.products, old=used, new=new
            ),
            scratch=Computed(roles=roles, old=old, new=new),
        )

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        own: FedSteerMemory = memory.own
        computed: Computed = outcome.scratch
        roles, columns, options = computed.roles, own.columns, self.options
        own.coordinates.replace(active, old=computed.old, new=computed.new, clients=memory.clients)
        takeovers = []
        if roles.candidates:
            takeovers = fill_vacant(roles, columns.owners, outcome.result.squared_norms)
        if own.sketches is not None and len(active):
            own.sketches[active.slots] = active.kernels.sketch(
                active.round.updates, options.width, options.seed
            )
            if roles.reselecting and not takeovers:
                takeovers = reselect(options, memory.clients, active, own.sketches, columns.owners)
        change = columns.renew(outcome.result, roles, takeovers, active, options.cache)
        if change is not None:
            own.coordinates.change_basis(change)

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        own: FedSteerMemory = memory.own
        clients = memory.clients
        own.coordinates.erase(slots, sizes, clients)
        leaving = {clients.roster.name(int(slot)) for slot in slots}
        for column, owner in enumerate(own.columns.owners):
            if owner in leaving:
                keep_owner = self.options.core_set is not None
                own.coordinates.change_basis(own.columns.vacate(column, keep_owner=keep_owner))
        if own.sketches is not None:
            own.sketches[slots] = 0.0

    def after_cycle(
        self, memory: Memory, collected: Collected, cycle: int, *, last: bool
    ) -> Component:
        options, clients = self.options, memory.clients
        own: FedSteerMemory = memory.own
        owners = owners_after_cycle(options, clients, collected, own.columns.owners, cycle)
        fresh = self._empty(owners, clients)
        fresh.sketches = own.sketches
        if last and options.warm_start == "updates":
            slots = clients.roster.find([owner for owner in owners if owner is not None])
            fresh.columns.load(collected.rows, slots, options.cache)
        if last and fresh.sketches is not None:  # re-selection must know whom the search chose
            fresh.sketches[collected.slots] = collected.sketch(options.width, options.seed)
        return fresh

    def kept_as(self, memory: Memory, updates: Array) -> str | None:
        own: FedSteerMemory = memory.own
        return own.columns.kept_as(updates, self.options.cache)

    def coordinates_of(self, memory: Memory, slots: Any) -> Floats | None:
        own: FedSteerMemory = memory.own
        return own.coordinates.read(slots)

    def estimates(self, memory: Memory, slots: Any) -> Array | None:
        own: FedSteerMemory = memory.own
        return own.columns.estimates(own.coordinates.read(slots), memory.like)

    def _empty(self, owners: Owners, clients: Clients) -> FedSteerMemory:
        """Vacant columns for these owners, and zero coordinates for the members."""
        options = self.options
        return FedSteerMemory(
            columns=Columns.vacant(owners, basis=options.basis, magnitude=options.magnitude),
            coordinates=Coordinates.zero(size=len(owners), members=len(clients.sizes.values)),
        )

    def _aggregate(
        self, own: FedSteerMemory, active: Active, roles: ColumnRoles, *, old: Floats, used: Floats
    ) -> Pass:
        """Steps 1 and 2: c = u/n - sum_A d_i/p_i s_i, where the active clients' s_i are `used`."""
        total = own.coordinates.total
        if active.resized or self.options.refresh == "before":
            total = own.coordinates.total_with(active, old=old, new=used)
        c = total / max(active.total, 1e-300) - active.weights @ used
        return self._sweep(own, active, roles, c)

    def _sweep(
        self, own: FedSteerMemory, active: Active, roles: ColumnRoles, coefficients: Floats
    ) -> Pass:
        # Below this ridge a float32 Gram matrix of near-collinear columns is indefinite.
        precise = self.options.ridge < 1e-3
        return own.columns.sweep(active, roles.gram_of, coefficients, precise=precise)

    def _solve(self, own: FedSteerMemory, result: Pass, roles: ColumnRoles) -> Floats:
        """Step 3: (m, k) what is stored for the active clients from now on."""
        options = self.options
        if options.coordinates == "ridge":
            return own.columns.solve(result, options.ridge, options.solver)
        norms = np.sqrt(result.squared_norms)
        return options.own_scale * own.columns.own_coordinates(norms, roles)
