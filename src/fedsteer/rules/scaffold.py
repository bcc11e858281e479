"""SCAFFOLD: control variates against client drift (Karimireddy et al. 2020, option II).

    local step     y <- y - eta (grad - c_i + c)
    client control c_i' = c_i - c + (w_sent - y) / (steps_i eta)
    model          Delta = sum_A n_i g_i / sum_A n_i     (or importance weighted)
    server control c <- c + sum_A d_i (c_i' - c_i)

so that c = sum d_i c_i, also when d_i = n_i / n change because clients join, leave or change size.
All clients are sent {"control": c}, each its own {"control": c_i}, both only if they are not zero.
The server keeps the c_i: memory (N + 1) x d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

import numpy as np

from fedsteer.options import option
from fedsteer.rules.algorithm import Memory, Outcome, Requests
from fedsteer.rules.fedavg import AVERAGES, AveragingRule
from fedsteer.rules.options import Options
from fedsteer.steering.clients import Clients
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats, kernels_for
from fedsteer.steering.memory import RowStore
from fedsteer.steering.rounds import Active
from fedsteer.steering.table import Table


@dataclass(frozen=True, kw_only=True)
class ScaffoldOptions(Options):
    local_rate: float = option(
        0.1, "eta: the clients' learning rate, over 1 - momentum if they have any", above=0.0
    )
    average: str = option("participants", "weights of the model step", choices=AVERAGES)


@dataclass
class ScaffoldMemory(Component):
    """c and the c_i."""

    control: Array | None = None  # (d,) float64
    controls: RowStore = field(default_factory=RowStore)  # (N, d)
    known: Table = field(default_factory=lambda: Table.empty(0))  # 1: there is a c_i
    total: float = 0.0  # n of the d_i in c; 0: today's, nothing else was ever seen


@final
class Scaffold(AveragingRule):
    """Control variates against client drift."""

    name: ClassVar[str] = "scaffold"
    options_type: ClassVar[type[Options]] = ScaffoldOptions
    needs = frozenset({"steps"})

    def begin(self, clients: Clients) -> Component:
        return ScaffoldMemory()

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        own: ScaffoldMemory = memory.own
        if own.control is None or own.controls.rows is None:
            return asked
        slots = memory.clients.roster.find(asked.train)
        known = (slots >= 0) & (own.known[slots] > 0)
        each = {
            client: {"control": own.controls.rows[slot]}
            for client, slot, has in zip(asked.train, slots, known, strict=True)
            if has
        }
        return replace(asked, shared={"control": own.control}, each=each)

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        own: ScaffoldMemory = memory.own
        n, kernels, updates = active.total, active.kernels, active.round.updates
        dim = memory.clients.dim
        if own.control is None:
            if not len(active):  # it is unknown what updates are like
                return
            own.control = kernels.allocate((dim,), updates, "float64")
        sent = own.control
        before = own.total / n if own.total > 0 and n > 0 else 1.0
        own.control, own.total = kernels.clone(sent), n
        own.control *= before - float(active.shares.sum())
        if not len(active):
            return
        rates = 1.0 / (active.round.steps * self.options.local_rate)
        # g_i / (steps * rate) may overflow two bytes.
        wide = "float64" if updates.dtype.itemsize == 8 else "float32"
        like = kernels.allocate((0, dim), updates, wide)
        own.controls.reserve(active.slots, like, len(memory.clients.sizes.values))
        rows = own.controls.rows
        kernels.add_rows(own.control, active.shares * rates, updates)
        if active.resized:
            grown = (active.sizes - active.old_sizes) / n
            kernels.add_rows(own.control, grown, rows, active.slots)
        for index, slot in enumerate(active.slots.tolist()):
            one = slice(index, index + 1)
            rows[slot] += kernels.combine(rates[None, one], updates[one])[0] - sent
        own.known[active.slots] = 1.0

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        own: ScaffoldMemory = memory.own
        own.known[slots] = 0.0
        if own.controls.rows is None or own.control is None:
            return
        own.controls.rows[slots[slots < len(own.controls.rows)]] = 0
        # Sum c anew from the c_i of the clients that stay.
        staying = np.flatnonzero(own.known.values > 0)
        total = memory.clients.total_without(slots, uses_probabilities=self.uses_probabilities)
        own.control[:], own.total = 0, total
        if len(staying) and total > 0:
            shares = memory.clients.sizes[staying] / total
            kernels_for(own.control).add_rows(own.control, shares, own.controls.rows, staying)
