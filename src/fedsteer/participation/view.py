"""What a rule is told of the participation probabilities: the truth, nothing, or an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsteer import draws
from fedsteer.errors import ConfigurationError
from fedsteer.participation.base import (
    SMALLEST_PROBABILITY,
    Participation,
    Probabilities,
    checked_seed,
)

MOST_NOISE = 100
"""exp of this times a normal draw is a number."""


@dataclass(frozen=True)
class ProbabilityView:
    """`known`: the true probabilities. `estimated`: None, the rule has to estimate them.

    `wrong`: the true ones times `factor` times exp(noise * z_i), z_i standard normal and the same
    in every round, kept in (0, 1].
    """

    kind: Literal["known", "estimated", "wrong"] = "known"
    factor: float = 1.0
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("known", "estimated", "wrong"):
            raise ConfigurationError(
                f"the view must be 'known', 'estimated' or 'wrong', got {self.kind!r}"
            )
        if not 0 < self.factor < float("inf"):
            raise ConfigurationError(f"factor must be positive, got {self.factor}")
        if not 0 <= self.noise <= MOST_NOISE:
            raise ConfigurationError(f"noise must be from 0 to {MOST_NOISE}, got {self.noise}")
        if self.kind != "wrong" and (self.factor != 1 or self.noise != 0):
            raise ConfigurationError("factor and noise belong to the view 'wrong'")
        checked_seed(self.seed)

    def of(self, participation: Participation) -> Probabilities | None:
        """The (N,) probabilities to hand to a rule, or None."""
        if self.kind == "estimated":
            return None
        truth = participation.probabilities
        if truth is None:
            raise ConfigurationError("these probabilities are not known; use the view 'estimated'")
        if self.kind == "known":
            return truth
        z = draws.generator(self.seed, "participation view").standard_normal(len(truth))
        return np.clip(truth * self.factor * np.exp(self.noise * z), SMALLEST_PROBABILITY, 1.0)
