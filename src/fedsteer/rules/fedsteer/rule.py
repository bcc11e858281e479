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
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from fedsteer.rules.algorithm import Algorithm, Memory, Outcome, Requests
from fedsteer.rules.fedsteer.columns import Columns
from fedsteer.rules.fedsteer.coordinates import Coordinates
from fedsteer.rules.fedsteer.drift import Drift, Sent
from fedsteer.rules.fedsteer.options import FedSteerOptions
from fedsteer.rules.fedsteer.roles import ColumnRoles, column_roles, takeovers
from fedsteer.rules.fedsteer.selection import Owners, first_owners
from fedsteer.rules.options import Options
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats, Pass
from fedsteer.steering.table import Table

if TYPE_CHECKING:
    from fedsteer.steering.clients import Clients
    from fedsteer.steering.collection import Collected
    from fedsteer.steering.rounds import Active


PRACTICAL = {
    "select": "online",
    "core_size": 20,
    "ridge": 0.05,
    "renew_after": 20,
    "drift": "auto",
}
"""What the preset "practical" changes beside what it changes for every rule."""


@dataclass
class FedSteerMemory(Component):
    """What FedSteer remembers: k d + N k numbers, and sketches if it re-selects."""

    columns: Columns
    coordinates: Coordinates
    sketches: Table | None = None  # (N, width), for reselect_every
    drift: Drift | None = None  # None: clients correct nothing

    def change_basis(self, change: Floats) -> None:
        """s_i <- M s_i for every client, where M is `change`."""
        self.coordinates.change_basis(change)
        if self.drift is not None:
            self.drift.total = change @ self.drift.total


@dataclass(frozen=True, kw_only=True)
class Computed:
    """What one round hands from `compute` to `commit`."""

    roles: ColumnRoles
    result: Pass  # products of the updates without what corrections added to them
    sent: Sent | None  # what that is; None: nothing
    old: Floats  # (m, k) coordinates before this round
    new: Floats  # (m, k) and after it


@final
class FedSteer(Algorithm):
    """Old coordinates on today's basis."""

    name: ClassVar[str] = "fedsteer"
    options_type: ClassVar[type[Options]] = FedSteerOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"practical": PRACTICAL}
    state_options: ClassVar[tuple[str, ...]] = (
        "core_set",
        "core_size",
        "select",
        "basis",
        "magnitude",
        "cache",
        "drift",
        "local_rate",
        "reselect_every",
        "sketch_width",
    )
    options: FedSteerOptions

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"steps"}) if self.options.alpha else frozenset()

    def begin(self, clients: Clients) -> Component:
        memory = self._empty(first_owners(self.options, clients), clients)
        if self.options.reselect_every:
            memory.sketches = Table.empty(0, self.options.width)
        return memory

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        own: FedSteerMemory = memory.own
        if own.drift is not None and own.columns.rows is not None:
            slots = memory.clients.roster.find(asked.train)
            known = np.flatnonzero(own.drift.paces[np.maximum(slots, 0)] * (slots >= 0))
            corrections = own.drift.corrections(slots[known], own.coordinates.read(slots[known]))
            vectors = own.columns.estimates(corrections, memory.like)
            corrected = [asked.train[i] for i in known]
            each = {c: {"correction": one} for c, one in zip(corrected, vectors, strict=True)}
            asked = replace(asked, each=each)
        every = self.options.refresh_all_every
        if every is None or (memory.clients.rounds + 1) % every:
            return asked
        if reachable is None:
            reachable = memory.clients.members() if memory.clients.closed else ()
        training = set(asked.train)
        return replace(asked, refresh=tuple(c for c in reachable if c not in training))

    def compute(self, memory: Memory, active: Active) -> Outcome:
        own: FedSteerMemory = memory.own
        columns, drift, every = own.columns, own.drift, self.options.reselect_every
        roles = column_roles(
            columns.owners,
            columns.since,
            active,
            renew_after=self.options.renew_after,
            reselecting=every is not None and (memory.clients.rounds + 1) % every == 0,
        )
        old = own.coordinates.read(active.slots)
        total, expected, sent = own.coordinates.total, old, None
        if drift is not None:
            expected = drift.expected(active.slots, old)
            total = drift.expected_of_everybody(total)
            sent = drift.sent(active, self.options.local_rate, old)
        if self.options.refresh == "after":
            result = self._aggregate(own, active, roles, total, expected)  # steps 1 and 2
            bare = result if sent is None else sent.take_out(result, columns.geometry, roles)
            new = self._solve(own, bare, roles)  # step 3
        else:
            glance = self._sweep(own, active, roles, np.zeros_like(total))
            new = expected = self._solve(own, glance, roles)
            total = own.coordinates.total_with(active, old=old, new=new)
            result = bare = self._aggregate(own, active, roles, total, new)
        after = new if sent is None else new + sent.coordinates
        return Outcome(
            result=result,
            weights=active.weights,
            core_set=tuple(owner for owner in columns.owners if owner is not None),
            believe=partial(
                columns.geometry.beliefs,
                products=result.products,
                old=active.trust * expected,
                new=after,
            ),
            scratch=Computed(roles=roles, result=bare, sent=sent, old=old, new=new),
        )

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        own: FedSteerMemory = memory.own
        computed: Computed = outcome.scratch
        roles, columns, options = computed.roles, own.columns, self.options
        result, sent, clients = computed.result, computed.sent, memory.clients
        own.coordinates.replace(active, old=computed.old, new=computed.new, clients=clients)
        if own.drift is not None and sent is not None:
            own.drift.replace(
                active,
                sent.paces,
                old=computed.old,
                new=computed.new,
                everyone=own.coordinates,
                clients=clients,
            )
        owners = columns.owners
        changes = takeovers(roles, owners, result.squared_norms) if roles.candidates else []
        if own.sketches is not None and len(active):
            own.sketches[active.slots] = active.kernels.sketch(
                active.round.updates, options.width, options.seed
            )
            if roles.reselecting and not changes:
                from fedsteer.rules.fedsteer.reselection import reselect

                changes = reselect(options, clients, active, own.sketches, owners)
        added = None if sent is None else sent.coordinates
        change = columns.renew(result, roles, changes, active, added)
        if change is not None:
            own.change_basis(change)

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        own: FedSteerMemory = memory.own
        clients = memory.clients
        own.coordinates.erase(slots, sizes, clients)
        leaving = {clients.roster.name(int(slot)) for slot in slots}
        for column, owner in enumerate(own.columns.owners):
            if owner in leaving:
                keep_owner = self.options.core_set is not None
                own.change_basis(own.columns.vacate(column, keep_owner=keep_owner))
        if own.drift is not None:
            own.drift.forget(slots, everyone=own.coordinates, clients=clients)
        if own.sketches is not None:
            own.sketches[slots] = 0.0

    def after_cycle(
        self, memory: Memory, collected: Collected, cycle: int, *, last: bool
    ) -> Component:
        from fedsteer.rules.fedsteer.reselection import owners_after_cycle

        options, clients = self.options, memory.clients
        own: FedSteerMemory = memory.own
        owners = owners_after_cycle(options, clients, collected, own.columns.owners, cycle)
        fresh = self._empty(owners, clients)
        fresh.sketches = own.sketches
        if last and options.warm_start == "updates":
            slots = clients.roster.find([owner for owner in owners if owner is not None])
            fresh.columns.load(collected.rows, slots, clients.number)
        if last and fresh.sketches is not None:  # re-selection must know whom the search chose
            fresh.sketches[collected.slots] = collected.sketch(options.width, options.seed)
        return fresh

    def coordinates_of(self, memory: Memory, slots: Any) -> Floats | None:
        own: FedSteerMemory = memory.own
        return own.coordinates.read(slots)

    def estimates(self, memory: Memory, slots: Any) -> Array | None:
        own: FedSteerMemory = memory.own
        coordinates = own.coordinates.read(slots)
        if own.drift is not None:
            coordinates = own.drift.expected(slots, coordinates)
        return own.columns.estimates(coordinates, memory.like)

    def _empty(self, owners: Owners, clients: Clients) -> FedSteerMemory:
        """Vacant columns for these owners, and zero coordinates for the members."""
        options = self.options
        return FedSteerMemory(
            columns=Columns.vacant(
                owners, basis=options.basis, magnitude=options.magnitude, cache=options.cache
            ),
            coordinates=Coordinates.zero(size=len(owners), members=len(clients.sizes.values)),
            drift=Drift(options.alpha, np.zeros(len(owners))) if options.alpha else None,
        )

    def _aggregate(
        self, own: FedSteerMemory, active: Active, roles: ColumnRoles, total: Floats, used: Floats
    ) -> Pass:
        """Steps 1 and 2: c = u/n - sum_A d_i/p_i s_i, times the trust in all estimates.

        `total` is u, and `used` are the s_i of the active clients.
        """
        if active.resized and self.options.refresh == "after":
            total = total + (active.sizes - active.old_sizes) @ used
        c = active.trust * (total / max(active.total, 1e-300) - active.weights @ used)
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
