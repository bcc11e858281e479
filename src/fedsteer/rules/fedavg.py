"""FedAvg: the weighted sum of the active clients' updates (McMahan et al. 2017).

    importance     Delta = sum_A d_i/p_i g_i               unbiased; the default
    participants   Delta = sum_A n_i g_i / sum_A n_i       the classic mean over participants
    normalised     Delta = sum_A d_i/p_i g_i / sum_A d_i/p_i    self-normalised (Hajek)

Full participation is this rule with all clients active and p_i = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from fedsteer.options import option
from fedsteer.rules.algorithm import Algorithm, Memory, Outcome
from fedsteer.rules.options import Options
from fedsteer.steering.kernels import Floats
from fedsteer.steering.rounds import Active

AVERAGES = ("importance", "participants", "normalised")


@dataclass(frozen=True, kw_only=True)
class FedAvgOptions(Options):
    """Options of FedAvg."""

    average: str = option(
        "importance", "weights: d_i/p_i, the mean over participants, or Hajek", choices=AVERAGES
    )


def averaging_weights(active: Active, average: str) -> Floats:
    """The factor of each g_i in the aggregate."""
    weights = active.weights
    if average == "importance":
        return weights
    if average == "participants":
        weights = np.where(active.fresh, active.sizes, 0.0)
    total = weights.sum()
    return weights / total if total > 0 else weights


def weighted_sum(active: Active, weights: Floats) -> Outcome:
    """weights @ g, for rules without estimates."""
    return Outcome(result=active.one_pass(weights), weights=weights)


@final
class FedAvg(Algorithm):
    """The weighted sum of the active clients' updates."""

    name: ClassVar[str] = "fedavg"
    options_type: ClassVar[type[Options]] = FedAvgOptions
    options: FedAvgOptions

    @property
    def uses_probabilities(self) -> bool:
        return self.options.average != "participants"

    def compute(self, memory: Memory, active: Active) -> Outcome:
        return weighted_sum(active, averaging_weights(active, self.options.average))
