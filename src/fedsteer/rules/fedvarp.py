"""FedVARP: the last update of every client as its estimate (Jhunjhunwala et al. 2022).

    Delta = sum_i d_i h_i + sum_A d_i/p_i (g_i - h_i)
    h_i <- g_i for i in A, starting at 0

Memory N x d. The sum over all clients is kept running.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from fedsteer.rules.algorithm import Algorithm, Memory, Outcome
from fedsteer.rules.beliefs import Estimates, PlainBeliefs
from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Array, Floats
from fedsteer.steering.memory import Recalled, UpdateMemory
from fedsteer.steering.rounds import Active

if TYPE_CHECKING:
    from fedsteer.steering.clients import Clients


def recalled_outcome(recalled: Recalled, weights: Floats) -> Outcome:
    """The outcome of a pass whose estimates are beta_i h_i."""
    result, scales = recalled.result, recalled.scales
    estimates = Estimates(scales * recalled.dots, scales**2 * recalled.squares)
    return Outcome(
        result=result,
        weights=weights,
        beliefs=PlainBeliefs(before=estimates),
        scratch=recalled,
    )


class StaleUpdateRule(Algorithm):
    """Delta = sum_i d_i beta_i h_i + sum_A d_i/p_i (g_i - beta_i h_i), with last updates h_i."""

    @abstractmethod
    def trust(self, recalled: Recalled) -> Floats:
        """(m,) beta_i of the active clients until their next visit."""

    def begin(self, clients: Clients) -> Component:
        return UpdateMemory()

    def compute(self, memory: Memory, active: Active) -> Outcome:
        own: UpdateMemory = memory.own
        recalled = own.recall(active, active.weights, minus=active.weights)
        return recalled_outcome(recalled, active.weights)

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        scales = self.trust(outcome.scratch)
        own: UpdateMemory = memory.own
        own.store_updates(active, outcome.scratch, scales, memory.clients)

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        own: UpdateMemory = memory.own
        own.forget(slots, memory.clients)

    def kept_as(self, memory: Memory, updates: Array) -> str | None:
        own: UpdateMemory = memory.own
        return own.store.kept_as(updates)

    def estimates(self, memory: Memory, slots: Any) -> Array | None:
        own: UpdateMemory = memory.own
        return own.estimates(slots, memory.like)


@final
class FedVARP(StaleUpdateRule):
    """The last update of every client as its estimate."""

    name: ClassVar[str] = "fedvarp"

    def trust(self, recalled: Recalled) -> Floats:
        return np.ones(len(recalled.dots))
