"""Independent draws: each client takes part with its own probability, round by round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsteer.participation.base import DrawnProcess, LongRunOptions, ParticipationOptions


@dataclass(frozen=True)
class BernoulliOptions(LongRunOptions):
    """Independent draws, round by round."""

    kind = "bernoulli"

    def process(self, clients: int, seed: int) -> Bernoulli:
        return Bernoulli(self.long_run(clients, seed), seed)


@dataclass(frozen=True)
class GroupsOptions(BernoulliOptions):
    """Independent draws of weak and powerful clients (the paper's)."""

    kind = "groups"


@dataclass(frozen=True)
class EverybodyOptions(ParticipationOptions):
    """All clients take part in every round."""

    kind = "everybody"

    def process(self, clients: int, seed: int) -> Bernoulli:
        return Bernoulli(np.ones(clients), seed)


class Bernoulli(DrawnProcess):
    """Client i is present with `probabilities[i]`, independently of others and of other rounds."""

    def on(self, round: int) -> NDArray[np.bool_]:
        return self.chance(round) < self.probabilities
