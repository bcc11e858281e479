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

With coordinates="own" (s_i = own_scale |h_i| e_i, X = all clients) this is FedVARP, or FedStale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from fedsteer.rules.algorithm import Algorithm, Memory, Outcome, Requests
from fedsteer.rules.fedsteer.memory import Expected, FedSteerMemory
from fedsteer.rules.fedsteer.options import FedSteerOptions
from fedsteer.rules.fedsteer.owners import (
    ColumnRoles,
    column_roles,
    first_owners,
    takeovers,
)
from fedsteer.rules.options import Options
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats, Pairs, Pass
from fedsteer.steering.table import Table

if TYPE_CHECKING:
    from fedsteer.rules.warm_up import Collected
    from fedsteer.steering.clients import Clients
    from fedsteer.steering.rounds import Active


@dataclass(frozen=True, kw_only=True)
class Computed:
    """What one round hands from `compute` to `commit`."""

    roles: ColumnRoles
    result: Pass  # products of the updates without what corrections added to them
    expected: Expected
    new: Floats  # (m, k) coordinates after the round


@final
class FedSteer(Algorithm):
    """Old coordinates on today's basis."""

    name: ClassVar[str] = "fedsteer"
    options_type: ClassVar[type[Options]] = FedSteerOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "practical": {
            "select": "online",
            "core_size": 20,
            "ridge": 0.05,
            "renew_after": 30,
            "drift": "auto",
            "newcomers": "learnt",
        }
    }
    state_options: ClassVar[tuple[str, ...]] = (
        "core_set",
        "core_size",
        "select",
        "basis",
        "magnitude",
        "cache",
        "drift",
        "local_rate",
        "newcomers",
        "reselect_every",
        "sketch_width",
    )
    options: FedSteerOptions

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"steps"}) if self.options.alpha else frozenset()

    def begin(self, clients: Clients) -> Component:
        memory = FedSteerMemory.empty(self.options, first_owners(self.options, clients), clients)
        if self.options.reselect_every:
            memory.sketches = Table.empty(0, self.options.width)
        return memory

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        own: FedSteerMemory = memory.own
        if own.drift is not None and own.columns.rows is not None:
            slots = memory.clients.roster.find(asked.train)
            paces = own.drift.paces[np.maximum(slots, 0)] * (slots >= 0)
            known = np.flatnonzero(paces)
            coordinates = own.coordinates.read(slots[known])
            corrections = own.drift.corrections(paces[known], coordinates, own.coordinates.sums)
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
        columns, options, every = own.columns, self.options, self.options.reselect_every
        roles = column_roles(
            columns.owners,
            columns.since,
            active,
            renew_after=options.renew_after,
            reselecting=every is not None and (memory.clients.rounds + 1) % every == 0,
        )
        # 1 estimate
        expected = own.expect(active, options.local_rate)
        believed, total, corrected = expected.active, expected.total, expected.corrected
        if options.refresh == "before":
            nothing = np.zeros(len(total))
            glance = columns.sweep(active, roles.gram_of, nothing, options.ridge)
            believed = self._solve(own, glance, roles)
            total = total + active.sizes @ (believed - expected.active)
        # 2 aggregate
        c = active.trust * (total / max(active.total, 1e-300) - active.weights @ believed)
        result = columns.sweep(active, roles.gram_of, c, options.ridge)
        # 3 coordinates
        bare = result
        if corrected is not None:
            bare = corrected.take_out(result, columns.geometry, roles)
        new = believed if options.refresh == "before" else self._solve(own, bare, roles)
        # 4 basis: in `commit`
        return Outcome(
            result=result,
            weights=active.weights,
            core_set=tuple(owner for owner in columns.owners if owner is not None),
            believe=partial(
                columns.geometry.beliefs,
                result.products,
                old=active.trust * believed,
                new=new if corrected is None else new + corrected.added,
            ),
            scratch=Computed(roles=roles, result=bare, expected=expected, new=new),
        )

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        own: FedSteerMemory = memory.own
        computed: Computed = outcome.scratch
        expected, coordinates = computed.expected, own.coordinates
        corrected = expected.corrected
        before, after = active.old_sizes[None], active.sizes[None]
        if own.drift is not None and corrected is not None:
            before, after = own.drift.commit(active, corrected)
        blurred = coordinates.replace(
            active.slots,
            old=expected.stored,
            new=computed.new,
            old_weights=before,
            weights=after,
        )
        if blurred:
            own.sum_anew(memory.clients, active)
        if own.newcomers is not None:
            own.newcomers.commit(active, expected.came, computed.result, own.columns.geometry)
        change = own.columns.renew(
            computed.result,
            active,
            refreshed=computed.roles.refreshed,
            takeovers=self._takeovers(memory, active, computed),
            gram_of=computed.roles.gram_of,
            added=None if corrected is None else corrected.added,
        )
        if change is not None:
            coordinates.change_basis(change)

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        own: FedSteerMemory = memory.own
        own.forget(slots, sizes, memory.clients)
        leaving = {memory.clients.roster.name(int(slot)) for slot in slots}
        for column, owner in enumerate(own.columns.owners):
            if owner in leaving:
                keep_owner = self.options.core_set is not None
                own.coordinates.change_basis(own.columns.vacate(column, keep_owner=keep_owner))

    def lose(self, memory: Memory, name: str, rows: Sequence[int]) -> bool:
        own: FedSteerMemory = memory.own
        if name != "columns.rows":
            return False
        for column in rows:  # their owners fill them again
            own.coordinates.change_basis(own.columns.vacate(column, keep_owner=True))
        return True

    def after_cycle(
        self, memory: Memory, collected: Collected, cycle: int, *, last: bool
    ) -> Component:
        from fedsteer.rules.fedsteer.search import owners_after_cycle

        options, clients = self.options, memory.clients
        own: FedSteerMemory = memory.own
        owners = owners_after_cycle(options, clients, collected, own.columns.owners, cycle)
        fresh = FedSteerMemory.empty(options, owners, clients)
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
        coordinates = own.estimates(slots, ~memory.clients.came(slots))
        return own.columns.estimates(coordinates, memory.like)

    def _solve(self, own: FedSteerMemory, result: Pass, roles: ColumnRoles) -> Floats:
        """(m, k) what is stored for the active clients from now on."""
        options = self.options
        if options.coordinates == "ridge":
            return own.columns.solve(result, options.ridge, options.solver)
        norms = np.sqrt(result.squared_norms)
        return options.own_scale * own.columns.own_coordinates(norms, roles)

    def _takeovers(self, memory: Memory, active: Active, computed: Computed) -> Pairs:
        """(column, position of its new owner), from sketches too if the rule re-selects."""
        own: FedSteerMemory = memory.own
        roles, owners, options = computed.roles, own.columns.owners, self.options
        changes: Pairs = []
        if roles.candidates:
            changes = takeovers(roles, owners, computed.result.squared_norms)
        if own.sketches is not None and len(active):
            own.sketches[active.slots] = active.kernels.sketch(
                active.round.updates, options.width, options.seed
            )
            if roles.reselecting and not changes:
                from fedsteer.rules.fedsteer.search import reselect

                changes = reselect(options, memory.clients, active, own.sketches, owners)
        return changes
