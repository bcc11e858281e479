"""FedAWE: every client continues from where it left off (Xiang et al. 2024).

    an active client starts from w_i, the aggregate it received at the end of its last active round
    w <- mean over A of  w_i + eta_g (t - tau_i) (w_i^E - w_i)
    w_i <- w, tau_i <- t for i in A          (w_i: the initial model and tau_i = 0 before)

The factor t - tau_i makes up for missed rounds, so no probabilities are needed. The paper's
population is fixed. Here, a client that joins later has missed nothing: it starts from today's
model with tau_i = t - 1; otherwise a client that joins in round 500 would count 500 times. Delta is
w - (new w), the whole step, so no server rate applies. Each client is sent {"start": w_i}; if
clients keep their models themselves, the round brings `starts`. Memory N x d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

import numpy as np

from fedsteer.errors import RoundRefused
from fedsteer.options import option
from fedsteer.rules.algorithm import Algorithm, Memory, Outcome, Requests
from fedsteer.rules.options import Options
from fedsteer.steering.checks import untracked
from fedsteer.steering.clients import Clients
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Flags, Floats, Integers, library_of
from fedsteer.steering.memory import RowStore
from fedsteer.steering.rounds import Active, NotFinite
from fedsteer.steering.table import Table


@dataclass(frozen=True, kw_only=True)
class FedAWEOptions(Options):
    rate: float = option(1.0, "eta_g: factor on each client's own step", above=0.0)


@dataclass
class FedAWEMemory(Component):
    """The model each client continues from, and when it was last active."""

    initial: Array | None = None  # (d,)
    models: RowStore = field(default_factory=RowStore)  # (N, d)
    last: Table = field(default_factory=lambda: Table.empty(0))  # tau_i; 0: never active
    since: Table = field(default_factory=lambda: Table.empty(0))  # round it joined; not active yet


@final
class FedAWE(Algorithm):
    """Every client continues from where it left off."""

    name: ClassVar[str] = "fedawe"
    options_type: ClassVar[type[Options]] = FedAWEOptions
    own_rate: ClassVar[bool] = True
    needs = frozenset({"starts", "model"})
    options: FedAWEOptions
    uses_probabilities = False

    def begin(self, clients: Clients) -> Component:
        return FedAWEMemory()

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        slots = memory.clients.roster.preview(asked.train)
        starts = self._starts(memory.own, slots, memory.clients.sizes[slots] > 0)
        known = zip(asked.train, starts, strict=True)
        return replace(asked, each={c: {"start": w} for c, w in known if w is not None})

    def compute(self, memory: Memory, active: Active) -> Outcome:
        own: FedAWEMemory = memory.own
        if active.round.model is None:
            raise RoundRefused("FedAWE needs model: the global model the round started from")
        dim = memory.clients.dim
        model = self._like_updates(active, "model", active.round.model, (dim,))
        starts = self._like_updates(active, "starts", active.round.starts, (len(active), dim))
        count = max(int(np.count_nonzero(active.fresh)), 1)  # refreshing changes nothing
        members = active.old_sizes > 0
        last = np.maximum(own.last[active.slots], own.since[active.slots])
        gaps = np.where(members, _clock(memory, active) - last, 1.0)
        weights = np.where(active.fresh, self.options.rate * gaps / count, 0.0)
        rows = starts
        if len(active) and starts is None:
            known = self._starts(own, active.slots, members)
            rows = active.kernels.stack([model if start is None else start for start in known])
        # Delta = w - mean of starts + weights @ g
        result = active.one_pass(
            weights,
            rows,
            np.where(active.fresh, -1.0 / count, 0.0),
            base=model if active.fresh.any() else None,
        )
        bad = np.flatnonzero(~np.isfinite(result.products).all(axis=1)).tolist()
        if bad and starts is not None:
            raise NotFinite(bad, "has a start model that is not finite")
        return Outcome(result=result, weights=weights, scratch=model)

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        own: FedAWEMemory = memory.own
        model = outcome.scratch
        if own.initial is None:
            own.initial = active.kernels.clone(model)
        joined = active.slots[(active.old_sizes <= 0) & ~active.fresh]
        own.since[joined] = _clock(memory, active)
        slots = active.slots[active.fresh]
        if not len(slots):
            return
        members = len(memory.clients.sizes.values)
        moved = model - outcome.result.delta
        own.models.reserve(slots, model[None], members)  # updates may be of a narrower dtype
        for slot in slots.tolist():
            own.models.rows[slot] = moved
        own.last[slots] = _clock(memory, active)

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        own: FedAWEMemory = memory.own
        own.last[slots] = own.since[slots] = 0.0

    @staticmethod
    def _like_updates(
        active: Active, name: str, array: Array | None, shape: tuple[int, ...]
    ) -> Array | None:
        """A model or start models of the round, which must be like its updates."""
        if array is None:
            return None
        found = tuple(getattr(array, "shape", ()))
        if library_of(array) != library_of(active.round.updates) or found != shape:
            raise RoundRefused(f"{name} must have shape {shape} and be like the updates")
        if active.kernels.check(array):
            raise RoundRefused(f"{name} must be of floating point, not {array.dtype}")
        return untracked(array)

    @staticmethod
    def _starts(own: FedAWEMemory, slots: Integers, members: Flags) -> list[Array | None]:
        """w_i of each member; None, the global model, for others and before the first step."""
        starts = [own.initial if member else None for member in members]
        for index in np.flatnonzero(members & (own.last[slots] > 0)):
            starts[index] = own.models.rows[slots[index]]
        return starts


def _clock(memory: Memory, active: Active) -> float:
    """t, without the rounds that held the model because there was no fresh update."""
    return float(active.round.number - memory.clients.idle)
