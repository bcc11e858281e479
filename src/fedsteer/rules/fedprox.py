"""FedProx: FedAvg's server, clients held back by a proximal term (Li et al. 2020).

    local gradient <- gradient + mu (w - w_sent)
    Delta = sum_A d_i/p_i g_i

mu travels to the clients as {"proximal": mu} in what `plan` asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from fedsteer.rules.base import Memory, Outcome, Requests, Rule
from fedsteer.rules.fedavg import FedAvgOptions, Nothing, averaging_weights, weighted_sum
from fedsteer.rules.options import Options, option
from fedsteer.steering.clients import Clients
from fedsteer.steering.kernels import Floats
from fedsteer.steering.roster import ClientId
from fedsteer.steering.rounds import Active
from fedsteer.steering.state import Component


@dataclass(frozen=True, kw_only=True)
class FedProxOptions(FedAvgOptions):
    """Options of FedProx."""

    proximal: float = option(0.1, "mu: strength of the pull to the model that was sent", low=0.0)


@final
class FedProx(Rule):
    """FedAvg's server, clients held back by a proximal term."""

    name: ClassVar[str] = "fedprox"
    options_type: ClassVar[type[Options]] = FedProxOptions
    options: FedProxOptions

    @property
    def weighs(self) -> bool:
        return self.options.average != "participants"

    def begin(self, clients: Clients) -> Component:
        return Nothing()

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        return replace(asked, shared={"proximal": self.options.proximal})

    def compute(self, memory: Memory, active: Active) -> Outcome:
        return weighted_sum(active, averaging_weights(active, self.options.average))

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None: ...

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None: ...
