"""FedVARP: the last update of every client as its estimate (Jhunjhunwala et al. 2022).

    Delta = sum_i d_i h_i + sum_A d_i/p_i (g_i - h_i)
    h_i <- g_i for i in A, starting at 0

Memory N x d. The sum over all clients is kept running.
"""

from functools import partial
from typing import Any, ClassVar, final

import numpy as np

from fedsteer.rules.algorithm import Algorithm, Beliefs, Estimates, Memory, Outcome
from fedsteer.steering.clients import Clients
from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Array, Floats
from fedsteer.steering.memory import Recalled, UpdateMemory
from fedsteer.steering.rounds import Active


class StaleUpdateRule(Algorithm):
    """Delta = sum_i d_i beta_i h_i + sum_A a_i (g_i - beta_i h_i), with last updates h_i."""

    def scales(self, recalled: Recalled) -> Floats:
        """(m,) beta_i of the active clients until their next visit."""
        return np.ones(len(recalled.dots))

    def begin(self, clients: Clients) -> Component:
        return UpdateMemory()

    def compute(self, memory: Memory, active: Active) -> Outcome:
        recalled: Recalled = memory.own.recall(active)
        counted = active.trust * recalled.scales
        estimates = Estimates(
            products=counted * recalled.dots, squares=counted**2 * recalled.squares
        )
        return Outcome(
            result=recalled.result,
            weights=active.weights,
            believe=partial(Beliefs, before=estimates),
            scratch=recalled,
        )

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        recalled = outcome.scratch
        memory.own.store_updates(active, recalled, self.scales(recalled), memory.clients)

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        memory.own.forget(slots, memory.clients)

    def estimates(self, memory: Memory, slots: Any) -> Array | None:
        return memory.own.estimates(slots, memory.like)


@final
class FedVARP(StaleUpdateRule):
    """The last update of every client as its estimate."""

    name: ClassVar[str] = "fedvarp"
