"""FedSteer: old coordinates on today's basis (UAI 2026, Algorithm 1).

The latest updates h_j of a small core set X are the basis, Q = [h_j / |h_j|]; of every client only
its k coordinates s_i are kept. With K = Q^T Q:

    1  estimate          g^_i = Q s_i                                    for everybody
    2  aggregate         Delta = sum_i d_i g^_i + sum_A d_i/p_i (g_i - g^_i)
    3  coordinates       s_i <- (K + lambda I)^-1 Q^T g_i                for i in A, this round's Q
    4  basis             h_i <- g_i                                      for i in A and X

Step 3 after step 2 keeps Delta unbiased (Proposition 1); refresh="before" is the other reading of
Section 2.2.2. Computed as Delta = Q c + sum_A d_i/p_i g_i with c = u/n - sum_A d_i/p_i s_i and
u = sum_i n_i s_i kept running: c is known before the updates are read, so one pass over them gives
Delta, Q^T G, the norms and all that keeps K exact. Time O((k + m) d), memory O(k d + N k).

With coordinates="own" (s_i = own_scale |h_i| e_i, X = everybody) this is FedVARP, or FedStale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from fedsteer.rules.algorithm import LARGEST, Algorithm, Memory, Outcome, Requests, own_of
from fedsteer.rules.diagnostics import Estimates
from fedsteer.rules.fedsteer_options import FedSteerOptions
from fedsteer.rules.options import Options
from fedsteer.rules.selection import (
    Casting,
    end_warm_up_round,
    fill_vacant,
    first_owners,
    first_subspace,
    reselect,
    roles,
    warm_up_outcome,
)
from fedsteer.steering.geometry import Geometry
from fedsteer.steering.kernels import Array, Floats, Pass
from fedsteer.steering.roster import ClientId
from fedsteer.steering.rounds import Active
from fedsteer.steering.state import Component
from fedsteer.steering.subspace import Subspace
from fedsteer.steering.table import Table
from fedsteer.steering.warmup import WarmUp
from fedsteer.values import value

if TYPE_CHECKING:
    from fedsteer.steering.clients import Clients


@dataclass
class FedSteerMemory(Component):
    """The subspace, and what selecting it takes."""

    subspace: Subspace
    warm_up: WarmUp | None = None
    sketches: Table | None = None  # (N, width), kept for reselect_every only


@value
class Scratch:
    """What one computed round hands to its commit."""

    result: Pass
    casting: Casting
    old: Floats  # (m, k) coordinates before
    new: Floats  # (m, k) and after


@value
class SubspaceBeliefs:
    """Estimates by coordinates before and after the round, computed when they are looked at."""

    geometry: Geometry
    scale: Floats  # (k,) from raw columns to those the coordinates refer to
    used: Floats  # (m, k) coordinates of the estimates in the aggregate
    new: Floats  # (m, k) coordinates after the round
    products: Floats  # (k, m) of the raw columns and the updates

    @cached_property
    def before(self) -> Estimates:
        return Estimates(*self.geometry.estimate(self.used * self.scale, self.products))

    @cached_property
    def after(self) -> Estimates:
        return Estimates(*self.geometry.estimate(self.new * self.scale, self.products))

    @property
    def condition(self) -> float:
        return self.geometry.condition

    @property
    def columns(self) -> int:
        return self.geometry.columns


@final
class FedSteer(Algorithm):
    """Old coordinates on today's basis."""

    name: ClassVar[str] = "fedsteer"
    options_type: ClassVar[type[Options]] = FedSteerOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"practical": {"select": "online"}}
    state_options: ClassVar[tuple[str, ...]] = (
        *("core_set", "core_size", "select", "basis", "magnitude", "cache"),
        *("reselect_every", "sketch_width"),
    )
    options: FedSteerOptions

    def begin(self, clients: Clients) -> Component:
        options = self.options
        owners = first_owners(options, clients)
        return FedSteerMemory(
            first_subspace(options, owners, clients),
            WarmUp(options.cycles) if options.warms_up else None,
            Table.empty(0, options.width) if options.reselect_every else None,
        )

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        own = own_of(memory, FedSteerMemory)
        if own.warm_up is not None:
            return Requests(collect=own.warm_up.asked(memory.clients, asked.train))
        every = self.options.refresh_all_every
        if every is None or (memory.clients.rounds + 1) % every:
            return asked
        if reachable is None:
            reachable = memory.clients.members() if memory.clients.closed else ()
        here = set(asked.train)
        return replace(asked, refresh=tuple(c for c in reachable if c not in here))

    def compute(self, memory: Memory, active: Active) -> Outcome:
        own = own_of(memory, FedSteerMemory)
        if own.warm_up is not None:
            return warm_up_outcome(memory, own.warm_up, active, self.options.reinitialise)
        space, weights, total = own.subspace, active.weights, max(active.total, 1e-300)
        casting = roles(self.options, space.owners, active, memory.clients.rounds)
        old = space.read(active.slots)
        if self.options.refresh == "after":
            baseline = space.total
            if active.resized:
                baseline = baseline + (active.sizes - active.old_sizes) @ old
            result = self._sweep(space, active, casting, baseline / total - weights.dot(old))
            new = self._coordinates(space, result, casting)
            used = old
        else:
            result = self._sweep(space, active, casting, np.zeros_like(space.total))
            new = used = self._coordinates(space, result, casting)
            baseline = space.total + active.sizes @ new - active.old_sizes @ old
            result = self._sweep(space, active, casting, baseline / total - weights @ new)
        return Outcome(
            delta=result.delta,
            delta_squared_norm=result.delta_squared_norm,
            squared_norms=result.squared_norms,
            weights=weights,
            core_set=tuple([owner for owner in space.owners if owner is not None]),
            beliefs=SubspaceBeliefs(
                space.geometry, space.estimate_scale, used, new, result.products
            ),
            scratch=Scratch(result, casting, old, new),
        )

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        own, options = own_of(memory, FedSteerMemory), self.options
        if own.warm_up is not None:
            own.subspace, own.warm_up = end_warm_up_round(
                options,
                memory,
                own.warm_up,
                own.subspace,
                active,
                complete=outcome.scratch,
                sketches=own.sketches,
            )
            return
        space, scratch = own.subspace, outcome.scratch
        space.write(active.slots, scratch.new)
        more, less = active.sizes.dot(scratch.new), active.old_sizes.dot(scratch.old)
        space.add_up(more, less, memory.clients, active)
        installed = fill_vacant(scratch.casting, space.owners, active, outcome.squared_norms)
        if own.sketches is not None and len(active):
            own.sketches[active.slots] = active.kernels.sketch(
                active.updates, options.width, options.seed
            )
            if scratch.casting.reselecting and not installed:
                installed = reselect(options, memory.clients, active, own.sketches, space.owners)
        space.renew(
            scratch.result,
            scratch.casting.gram_of,
            scratch.casting.refreshed,
            installed,
            active.updates,
            options.cache,
        )

    def kept_as(self, memory: Memory, updates: Array) -> str | None:
        own = own_of(memory, FedSteerMemory)
        column = own.subspace.kept_as(updates, self.options.cache)
        if own.warm_up is None:
            return column
        snapshot = own.warm_up.snapshot.kept_as(updates)
        if column is None or self.options.warm_start != "updates":
            return snapshot
        return min(snapshot, column, key=LARGEST.__getitem__)  # first one, then the other

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        own = own_of(memory, FedSteerMemory)
        space = own.subspace
        less = sizes @ space.read(slots)
        space.write(slots, np.zeros((len(slots), len(space.owners))))
        space.add_up(np.zeros_like(less), less, memory.clients)
        leaving = {memory.clients.roster.name(int(slot)) for slot in slots}
        for column, owner in enumerate(space.owners):
            if owner in leaving:
                space.vacate(column, keep_owner=self.options.core_set is not None)
        if own.warm_up is not None:
            own.warm_up.forget(slots)
        if own.sketches is not None:
            own.sketches[slots] = 0.0

    def warming_up(self, memory: Memory) -> bool:
        return own_of(memory, FedSteerMemory).warm_up is not None

    def coordinates_of(self, memory: Memory, slots: Any) -> Floats | None:
        return own_of(memory, FedSteerMemory).subspace.read(slots)

    def estimates(self, memory: Memory, slots: Any) -> Array | None:
        return own_of(memory, FedSteerMemory).subspace.estimates(slots, memory.like)

    def _sweep(
        self, space: Subspace, active: Active, casting: Casting, coefficients: Floats
    ) -> Pass:
        # Below this ridge a float32 Gram matrix of near-collinear columns is indefinite.
        precise = self.options.ridge < 1e-3
        return space.sweep(active, coefficients, casting.gram_of, precise)

    def _coordinates(self, space: Subspace, result: Pass, casting: Casting) -> Floats:
        """(m, k) what is stored for the active clients from now on (step 3)."""
        options = self.options
        if options.coordinates == "ridge":
            return space.solve(result, options.ridge, options.solver)
        norms = np.sqrt(result.squared_norms)
        return options.own_scale * space.own_coordinates(norms, casting.core, casting.refreshed)
