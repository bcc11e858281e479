"""FedProx: FedAvg's server, with a proximal term that holds clients back (Li et al. 2020).

    local gradient <- gradient + mu (w - w_sent)
    Delta = sum_A d_i/p_i g_i

Clients are sent {"proximal": mu} in the requests of `plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

from fedsteer.options import option
from fedsteer.rules.algorithm import Algorithm, Memory, Outcome, Requests
from fedsteer.rules.fedavg import FedAvg, FedAvgOptions
from fedsteer.rules.options import Options
from fedsteer.steering.ids import ClientId
from fedsteer.steering.rounds import Active


@dataclass(frozen=True, kw_only=True)
class FedProxOptions(FedAvgOptions):
    """Options of FedProx."""

    proximal: float = option(0.1, "mu: strength of the pull to the model that was sent", low=0.0)


@final
class FedProx(Algorithm):
    """FedAvg's server, with a proximal term that holds clients back."""

    name: ClassVar[str] = "fedprox"
    options_type: ClassVar[type[Options]] = FedProxOptions
    options: FedProxOptions

    def __init__(self, options: FedProxOptions) -> None:
        super().__init__(options)
        self.average = FedAvg(options)

    @property
    def uses_probabilities(self) -> bool:
        return self.average.uses_probabilities

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        return replace(asked, shared={"proximal": self.options.proximal})

    def compute(self, memory: Memory, active: Active) -> Outcome:
        return self.average.compute(memory, active)
