"""Independent draws: each client takes part with its own probability, round by round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsteer import draws
from fedsteer.participation.base import (
    ClientNumbers,
    LongRunOptions,
    Probabilities,
    check_whole,
    checked_probabilities,
)


@dataclass(frozen=True)
class BernoulliOptions(LongRunOptions):
    """Independent draws, round by round."""

    kind = "bernoulli"

    def process(self, clients: int, seed: int) -> Bernoulli:
        """Independent draws with these probabilities."""
        return Bernoulli(self.long_run(clients, seed), seed=seed)


@dataclass(frozen=True)
class GroupsOptions(BernoulliOptions):
    """Independent draws of weak and powerful clients (the paper's)."""

    kind = "groups"


@dataclass(frozen=True, eq=False)
class Bernoulli:
    """Client i is present with `probabilities[i]`, independently of others and of other rounds."""

    probabilities: Probabilities
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "probabilities", checked_probabilities(self.probabilities))
        check_whole("seed", self.seed)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.probabilities)

    def present(self, round: int) -> ClientNumbers:
        """The clients whose draw succeeds in this round."""
        check_whole("round", round)
        chance = draws.generator(self.seed, "participation", round=round).random(self.clients)
        return np.flatnonzero(chance < self.probabilities)
