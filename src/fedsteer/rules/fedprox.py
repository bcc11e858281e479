"""FedProx: FedAvg's server, clients held back by a proximal term (Li et al. 2020).

    local gradient <- gradient + mu (w - w_sent)
    Delta = sum_A d_i/p_i g_i

mu travels to the clients as {"proximal": mu} in what `plan` asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

from fedsteer.options import option
from fedsteer.rules.fedavg import FedAvg, FedAvgOptions
from fedsteer.rules.options import Options
from fedsteer.rules.parts import Memory, Requests
from fedsteer.steering.roster import ClientId


@dataclass(frozen=True, kw_only=True)
class FedProxOptions(FedAvgOptions):
    """Options of FedProx."""

    proximal: float = option(0.1, "mu: strength of the pull to the model that was sent", low=0.0)


@final
class FedProx(FedAvg):
    """FedAvg's server, clients held back by a proximal term."""

    name: ClassVar[str] = "fedprox"
    options_type: ClassVar[type[Options]] = FedProxOptions
    options: FedProxOptions

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        return replace(asked, shared={"proximal": self.options.proximal})
