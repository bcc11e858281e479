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
from fedsteer.rules.algorithm import Memory, Requests
from fedsteer.rules.fedavg import AveragingRule, FedAvgOptions
from fedsteer.rules.options import Options
from fedsteer.steering.ids import ClientId


@dataclass(frozen=True, kw_only=True)
class FedProxOptions(FedAvgOptions):
    proximal: float = option(0.1, "mu: strength of the pull to the model that was sent", low=0.0)


@final
class FedProx(AveragingRule):
    """FedAvg's server, with a proximal term that holds clients back."""

    name: ClassVar[str] = "fedprox"
    options_type: ClassVar[type[Options]] = FedProxOptions

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        return replace(asked, shared={"proximal": self.options.proximal})
