"""FedStale: FedVARP with less trust in old updates (Rodio and Neglia 2024).

    Delta = sum_i d_i beta_i h_i + sum_A d_i/p_i (g_i - beta_i h_i),   0 <= beta_i <= 1
    h_i <- g_i for i in A, starting at 0

beta_i is one number for all, or adaptive: beta_i = g_i . h_i / |h_i|^2 at the client's last visit,
cut to [0, 1] (we add the cut: a tiny h_i would otherwise blow up the next estimate). beta = 1 is
FedVARP, beta = 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from fedsteer.options import option
from fedsteer.rules.base import Memory, Outcome, Rule
from fedsteer.rules.fedvarp import corrected
from fedsteer.rules.options import Options
from fedsteer.steering.clients import Clients
from fedsteer.steering.kernels import Array, Floats
from fedsteer.steering.memory import Recalled, UpdateMemory
from fedsteer.steering.rounds import Active
from fedsteer.steering.state import Component


@dataclass(frozen=True, kw_only=True)
class FedStaleOptions(Options):
    """Options of FedStale."""

    beta: float = option(0.5, "trust in an old update, 0 to 1", low=0.0, high=1.0)
    adaptive: bool = option(False, "per client beta from its last two updates; beta until then")


@final
class FedStale(Rule):
    """FedVARP with less trust in old updates."""

    name: ClassVar[str] = "fedstale"
    options_type: ClassVar[type[Options]] = FedStaleOptions
    options: FedStaleOptions

    def begin(self, clients: Clients) -> Component:
        return UpdateMemory()

    def compute(self, memory: Memory, active: Active) -> Outcome:
        return corrected(memory, active)

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        assert isinstance(memory.own, UpdateMemory)
        memory.own.store_updates(
            active, outcome.scratch, self._trust(outcome.scratch), memory.clients
        )

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        assert isinstance(memory.own, UpdateMemory)
        memory.own.forget(slots, memory.clients)

    def estimates(self, memory: Memory, slots: Any) -> Array | None:
        assert isinstance(memory.own, UpdateMemory)
        return memory.own.estimates(slots, memory.like)

    def _trust(self, recalled: Recalled) -> Floats:
        trust = np.full(len(recalled.dots), self.options.beta)
        if self.options.adaptive:
            usable = recalled.squares > 0
            trust[usable] = np.clip(recalled.dots[usable] / recalled.squares[usable], 0.0, 1.0)
        return trust
