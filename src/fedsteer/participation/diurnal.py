"""Day and night: probabilities that rise and fall with the rounds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np

from fedsteer import draws
from fedsteer.errors import ConfigurationError
from fedsteer.participation.base import (
    SMALLEST_PROBABILITY,
    ClientNumbers,
    Probabilities,
    checked_probabilities,
    checked_round,
    checked_seed,
)

_GRID = 1024  # most instants for the average of a clipped wave: a period of a / b rounds has a


@dataclass(frozen=True, eq=False)
class Diurnal:
    """Client i is present in round t with probability

        p_i(t) = p_i (1 + amplitude sin(2 pi (t / period + phase_i))), clipped to (0, 1],

    by independent draws. With `phases="common"` all phases are 0: the clients come and go
    together. With `phases="spread"` each client's is drawn uniformly from the seed.
    """

    base: Probabilities  # p_i
    amplitude: float = 0.8
    period: float = 24.0  # in rounds
    phases: Literal["common", "spread"] = "common"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", checked_probabilities(self.base))
        checked_seed(self.seed)
        if not 0 <= self.amplitude <= 1:
            raise ConfigurationError(f"amplitude must lie in [0, 1], got {self.amplitude}")
        if not 2 <= self.period < float("inf"):
            raise ConfigurationError(f"period must be at least 2 rounds, got {self.period}")
        if self.phases not in ("common", "spread"):
            raise ConfigurationError(f"phases must be 'common' or 'spread', got {self.phases!r}")

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.base)

    @property
    def probabilities(self) -> Probabilities:
        """The mean of p_i(t) over a period: p_i itself, unless the wave is clipped."""
        if (self.base * (1 + self.amplitude)).max() <= 1:
            return self.base
        steps = min(Fraction(repr(float(self.period))).numerator, _GRID)
        total = np.zeros(self.clients)
        for step in range(steps):
            total += self._wave(step / steps)
        return total / steps

    def at(self, round: int) -> Probabilities:
        """p_i(t), the probabilities of one round."""
        checked_round(round)
        return self._wave(round / self.period)

    def present(self, round: int) -> ClientNumbers:
        """The clients whose draw succeeds in this round."""
        checked_round(round)
        chance = draws.generator(self.seed, "participation", round=round).random(self.clients)
        return np.flatnonzero(chance < self.at(round))

    def _wave(self, cycles: float) -> Probabilities:
        wave = self.base * (1 + self.amplitude * np.sin(2 * np.pi * (cycles + self._phases)))
        return np.clip(wave, SMALLEST_PROBABILITY, 1.0)

    @cached_property
    def _phases(self) -> float | Probabilities:
        if self.phases == "common":
            return 0.0
        return draws.generator(self.seed, "participation phases").random(self.clients)
