"""Full participation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsteer.participation.base import (
    ClientNumbers,
    ParticipationOptions,
    Probabilities,
    check_whole,
)


@dataclass(frozen=True)
class EverybodyOptions(ParticipationOptions):
    """All clients take part in every round."""

    kind = "everybody"

    def process(self, clients: int, seed: int) -> Everybody:
        """Full participation; nothing is drawn."""
        return Everybody(clients)


@dataclass(frozen=True)
class Everybody:
    """Every client, every round."""

    clients: int

    def __post_init__(self) -> None:
        check_whole("clients", self.clients, low=1)

    @property
    def probabilities(self) -> Probabilities:
        """One for every client."""
        return np.ones(self.clients)

    def present(self, round: int) -> ClientNumbers:
        """All clients."""
        check_whole("round", round)
        return np.arange(self.clients)
