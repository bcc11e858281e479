"""Day and night: probabilities that rise and fall with the rounds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from fedsteer import draws
from fedsteer.errors import ConfigurationError
from fedsteer.options import option
from fedsteer.participation.base import (
    SMALLEST_PROBABILITY,
    ClientNumbers,
    LongRunOptions,
    Probabilities,
    check_whole,
    checked_probabilities,
)

PHASES = ("common", "spread")

# A clipped wave is averaged over at most so many instants; a period of a / b rounds needs a.
_GRID = 1024


@dataclass(frozen=True)
class DiurnalOptions(LongRunOptions):
    """Day and night: probabilities rise and fall with the rounds."""

    kind = "diurnal"
    amplitude: float = option(0.8, "how much of p comes and goes with the day", low=0, high=1)
    period: float = option(24.0, "rounds per day", low=2)
    phases: str = option(
        "common", "common: one day for all clients; spread: one for each", choices=PHASES
    )

    def process(self, clients: int, seed: int) -> Diurnal:
        """Day and night with these options."""
        base = self.long_run(clients, seed)
        return Diurnal(base, self.amplitude, self.period, self.phases, seed=seed)


@dataclass(frozen=True, eq=False)
class Diurnal:
    """Client i is present in round t with probability

        p_i(t) = p_i (1 + amplitude sin(2 pi (t / period + phase_i))), clipped to (0, 1],

    by independent draws. `phases="common"`: all phases are 0, so clients come and go together.
    `phases="spread"`: each client's phase is drawn uniformly from the seed.
    """

    base: Probabilities  # p_i
    amplitude: float = 0.8
    period: float = 24.0  # in rounds
    phases: str = "common"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", checked_probabilities(self.base))
        check_whole("seed", self.seed)
        if not 0 <= self.amplitude <= 1:
            raise ConfigurationError(f"amplitude must be in [0, 1], got {self.amplitude}")
        if not 2 <= self.period < float("inf"):
            raise ConfigurationError(f"period must be at least 2 rounds, got {self.period}")
        if self.phases not in PHASES:
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
        check_whole("round", round)
        return self._wave(round / self.period)

    def present(self, round: int) -> ClientNumbers:
        """The clients whose draw succeeds in this round."""
        check_whole("round", round)
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
