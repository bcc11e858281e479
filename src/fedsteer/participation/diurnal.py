"""Day and night: probabilities that rise and fall with the rounds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsteer import draws
from fedsteer.options import option
from fedsteer.participation.base import (
    SMALLEST_PROBABILITY,
    DrawnProcess,
    LongRunOptions,
    Probabilities,
)

# Most instants that a clipped wave is averaged over; a period of a / b rounds needs a of them.
_GRID = 1024


@dataclass(frozen=True)
class DiurnalOptions(LongRunOptions):
    """Day and night: probabilities rise and fall with the rounds."""

    kind = "diurnal"
    amplitude: float = option(0.8, "how much of p comes and goes with the day", low=0, high=1)
    period: float = option(24.0, "rounds per day", low=2)
    phases: str = option(
        "common",
        "common: one day for all clients; spread: one for each",
        choices=("common", "spread"),
    )

    def process(self, clients: int, seed: int) -> Diurnal:
        return Diurnal(self.long_run(clients, seed), self, seed)


class Diurnal(DrawnProcess):
    """Client i is present in round t with probability

        p_i(t) = p_i (1 + amplitude sin(2 pi (t / period + phase_i))), clipped to (0, 1],

    by independent draws. `phases="common"`: all phases are 0, so clients come and go together.
    `phases="spread"`: each client's phase is drawn uniformly from the seed.
    """

    def __init__(self, probabilities: ArrayLike, options: DiurnalOptions, seed: int = 0) -> None:
        super().__init__(probabilities, seed)
        self.amplitude, self.period = options.amplitude, options.period
        self._phases = np.zeros(self.clients)
        if options.phases == "spread":
            self._phases = draws.generator(seed, "participation phases").random(self.clients)

    @property
    def probabilities(self) -> Probabilities:
        """The mean of p_i(t) over a period: p_i itself, unless the wave is clipped."""
        if (self.base * (1 + self.amplitude)).max() <= 1:
            return self.base
        steps = min(Fraction(repr(self.period)).numerator, _GRID)
        waves = (self._wave(step / steps) for step in range(steps))
        return sum(waves, start=np.zeros(self.clients)) / steps

    def at(self, round: int) -> Probabilities:
        """p_i(t), the probabilities of one round."""
        return self._wave(round / self.period)

    def on(self, round: int) -> NDArray[np.bool_]:
        return self.chance(round) < self.at(round)

    def _wave(self, cycles: float) -> Probabilities:
        wave = self.base * (1 + self.amplitude * np.sin(2 * np.pi * (cycles + self._phases)))
        return np.clip(wave, SMALLEST_PROBABILITY, 1.0)
