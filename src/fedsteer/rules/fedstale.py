"""FedStale: FedVARP with less trust in old updates (Rodio and Neglia 2024).

    Delta = sum_i d_i beta_i h_i + sum_A d_i/p_i (g_i - beta_i h_i),   0 <= beta_i <= 1
    h_i <- g_i for i in A, starting at 0

beta_i is one number for all clients, or adaptive: beta_i = g_i . h_i / |h_i|^2 at the client's last
visit, clipped to [0, 1]. The clipping is ours: a tiny h_i would otherwise blow up the next
estimate. beta = 1 is FedVARP, beta = 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from fedsteer.options import option
from fedsteer.rules.fedvarp import StaleUpdateRule
from fedsteer.rules.options import Options
from fedsteer.steering.kernels import Floats
from fedsteer.steering.memory import Recalled


@dataclass(frozen=True, kw_only=True)
class FedStaleOptions(Options):
    beta: float = option(0.5, "trust in an old update, 0 to 1", low=0.0, high=1.0)
    adaptive: bool = option(False, "per client beta from its last two updates; beta until then")


@final
class FedStale(StaleUpdateRule):
    """FedVARP with less trust in old updates."""

    name: ClassVar[str] = "fedstale"
    options_type: ClassVar[type[Options]] = FedStaleOptions
    options: FedStaleOptions

    def scales(self, recalled: Recalled) -> Floats:
        scales = np.full(len(recalled.dots), self.options.beta)
        if self.options.adaptive:
            usable = recalled.squares > 0
            scales[usable] = np.clip(recalled.dots[usable] / recalled.squares[usable], 0.0, 1.0)
        return scales
