"""FedAvg: the weighted sum of the active clients' updates (McMahan et al. 2017).

    importance     Delta = sum_A d_i/p_i g_i               unbiased; the default
    participants   Delta = sum_A n_i g_i / sum_A n_i       the classic mean over participants
    normalised     Delta = sum_A d_i/p_i g_i / sum_A d_i/p_i    self-normalised (Hajek)

Full participation is this rule with all clients active and p_i = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from fedsteer.options import option
from fedsteer.rules.algorithm import Algorithm, Memory, Outcome
from fedsteer.rules.options import Options
from fedsteer.steering.rounds import Active

AVERAGES = ("importance", "participants", "normalised")


@dataclass(frozen=True, kw_only=True)
class FedAvgOptions(Options):
    average: str = option(
        "importance", "weights: d_i/p_i, the mean over participants, or Hajek", choices=AVERAGES
    )


class AveragingRule(Algorithm):
    """The weighted sum of the active clients' updates, for rules without estimates."""

    options: Any  # with `average`

    @property
    def uses_probabilities(self) -> bool:
        return bool(self.options.average != "participants")

    def compute(self, memory: Memory, active: Active) -> Outcome:
        weights = active.weights
        if self.options.average == "participants":
            weights = np.where(active.fresh, active.sizes, 0.0)
        if self.options.average != "importance":
            total = weights.sum()
            weights = weights / total if total > 0 else weights
        return Outcome(result=active.one_pass(weights), weights=weights)


@final
class FedAvg(AveragingRule):
    """The weighted sum of the active clients' updates."""

    name: ClassVar[str] = "fedavg"
    options_type: ClassVar[type[Options]] = FedAvgOptions
