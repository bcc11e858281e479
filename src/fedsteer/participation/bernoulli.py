"""Independent draws: each client is there with its own probability, round by round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsteer import draws
from fedsteer.errors import ConfigurationError
from fedsteer.participation.base import (
    ClientNumbers,
    Probabilities,
    checked_clients,
    checked_probabilities,
    checked_round,
    checked_seed,
)


@dataclass(frozen=True, eq=False)
class Bernoulli:
    """Client i is present with `probabilities[i]`, independently of others and of other rounds."""

    probabilities: Probabilities
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "probabilities", checked_probabilities(self.probabilities))
        checked_seed(self.seed)

    @classmethod
    def groups(
        cls,
        clients: int = 100,
        weak: float = 0.04,
        powerful: float = 0.16,
        share: float = 0.5,
        seed: int = 0,
    ) -> Bernoulli:
        """A share of weak clients and the rest powerful; the defaults are the paper's setting."""
        return cls(group_probabilities(clients, weak, powerful, share, seed), seed)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.probabilities)

    def present(self, round: int) -> ClientNumbers:
        """The clients whose draw succeeds in this round."""
        checked_round(round)
        chance = draws.generator(self.seed, "participation", round=round).random(self.clients)
        return np.flatnonzero(chance < self.probabilities)


def group_probabilities(
    clients: int = 100,
    weak: float = 0.04,
    powerful: float = 0.16,
    share: float = 0.5,
    seed: int = 0,
) -> Probabilities:
    """round(share * clients) clients with probability `weak`, the others with `powerful`.

    Which client is weak is drawn from the seed for this purpose alone, hence independent of the
    group its data puts it in.
    """
    checked_clients(clients)
    checked_seed(seed)
    if not 0 <= share <= 1:
        raise ConfigurationError(f"share must lie in [0, 1], got {share}")
    values = np.full(clients, powerful, dtype=np.float64)
    order = draws.generator(seed, "participation groups").permutation(clients)
    values[order[: round(share * clients)]] = weak
    return checked_probabilities(values)
