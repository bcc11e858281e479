"""Full participation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsteer.participation.base import ClientNumbers, Probabilities, checked_clients, checked_round


@dataclass(frozen=True)
class Everybody:
    """Every client, every round."""

    clients: int

    def __post_init__(self) -> None:
        checked_clients(self.clients)

    @property
    def probabilities(self) -> Probabilities:
        """One for every client."""
        return np.ones(self.clients)

    def present(self, round: int) -> ClientNumbers:
        """All clients."""
        checked_round(round)
        return np.arange(self.clients)
