"""MIFA: the mean of all clients' last updates (Gu et al. 2021).

    h_i <- g_i for i in A
    Delta = sum_i d_i h_i

Needs no probabilities; biased by staleness. The original waits until every client has answered
once (start="wait"). With start="zeros", clients without an update count as 0; with "seen", the
weights are relative to the clients seen so far. Clients that were asked only to refresh count like
the others, because there are no weights 1/p_i that their visit could bias. Memory N x d.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

from fedsteer.errors import ConfigurationError
from fedsteer.options import option
from fedsteer.rules.algorithm import Memory, Outcome
from fedsteer.rules.fedvarp import StaleUpdateRule
from fedsteer.rules.options import Options
from fedsteer.steering.clients import Clients
from fedsteer.steering.component import Component
from fedsteer.steering.rounds import Active


@dataclass(frozen=True, kw_only=True)
class MIFAOptions(Options):
    start: str = option(
        "zeros",
        "clients without an update so far count as 0, are waited for, or are left out",
        choices=("zeros", "wait", "seen"),
    )


@final
class MIFA(StaleUpdateRule):
    """The mean of all clients' last updates."""

    name: ClassVar[str] = "mifa"
    options_type: ClassVar[type[Options]] = MIFAOptions
    options: MIFAOptions
    uses_probabilities = False

    def begin(self, clients: Clients) -> Component:
        if self.options.start == "wait" and not clients.closed:
            raise ConfigurationError('start="wait" needs sizes, to know which clients to wait for')
        return super().begin(clients)

    def compute(self, memory: Memory, active: Active) -> Outcome:
        heard, total, shares = memory.own.heard_with(active), active.total, active.shares
        if self.options.start == "seen":
            total, shares = heard, active.sizes / max(heard, 1e-300)
        outcome = super().compute(memory, replace(active, total=total, weights=shares))
        waiting = self.options.start == "wait" and heard < total * (1 - 1e-12)
        return replace(outcome, action="hold" if waiting else "move")
