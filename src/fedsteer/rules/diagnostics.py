"""What a step tells about itself, from numbers of size m and k.

With g^_i what the rule believed of client i before it had g_i, and a_i = d_i/p_i:

    residual     r_i = |g_i|^2 - 2 g_i . g^_i + |g^_i|^2
    variance     sum_A a_i^2 (1 - p_i) r_i              Theorem 1, estimated from whoever is there

A server may take thousands of steps and look at none of this, so what takes more than writing down
is worked out when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedsteer.rules.beliefs import NO_BELIEFS, Beliefs
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Floats, Integers


def _nobody() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """What happened in a step, client by client and in sum; costs k dimensions only."""

    phase: str  # "train" or "warm-up"
    number: int = 0  # of the round
    clients: tuple[ClientId, ...] = ()
    fresh: tuple[bool, ...] = ()  # False: asked only to refresh
    weights: Floats = field(default_factory=_nobody)  # the factor of g_i in the aggregate
    delta_norm: float = 0.0  # 0 where the model stands still
    bound_factor: float = 1.0  # the norm bound scaled delta by this; 1: it did not act
    dropped: Mapping[ClientId, str] = field(default_factory=dict)
    core_set: tuple[ClientId, ...] = ()
    # What everything else follows from. Nothing here may be of size d: diagnostics are kept.
    squared_norms: Floats = field(default_factory=_nobody)  # |g_i|^2
    inverse_probabilities: Floats = field(default_factory=_nobody)  # 1 / p_i
    last_seen: Floats | Integers = field(default_factory=_nobody)  # rounds; 0: never before
    unbiased: Floats | None = None  # a_i, where the rule weighs by them and trains
    beliefs: Beliefs = NO_BELIEFS

    @cached_property
    def probabilities(self) -> Floats:
        """p_i used."""
        return 1.0 / self.inverse_probabilities

    @cached_property
    def staleness(self) -> Floats:
        """Rounds since the last visit; nan for the first."""
        return np.where(self.last_seen > 0, self.number - self.last_seen, np.nan)

    @cached_property
    def norms(self) -> Floats:
        """|g_i|."""
        return np.sqrt(self.squared_norms)

    @cached_property
    def relative_errors(self) -> Floats:
        """|g_i - estimate|^2 / |g_i|^2 of the estimate before the refresh; nan where g_i is 0."""
        return self._residuals / _positive(self.squared_norms)

    @cached_property
    def refreshed_errors(self) -> Floats:
        """As `relative_errors`, of coordinates recomputed from g_i itself."""
        after = self.beliefs.after
        if after is None:
            return np.full(len(self.clients), np.nan)
        return after.residuals(self.squared_norms) / _positive(self.squared_norms)

    @cached_property
    def cosines(self) -> Floats:
        """Between g_i and the estimate before the refresh; nan where there is none."""
        before = self.beliefs.before
        if before is None:
            return np.full(len(self.clients), np.nan)
        lengths = np.sqrt(_positive(self.squared_norms)) * np.sqrt(_positive(before.squares))
        cosines: Floats = before.products / lengths
        return cosines

    @cached_property
    def variance(self) -> float:
        """Of the aggregate; nan for rules that do not weigh by d_i/p_i, and in a warm-up."""
        if self.unbiased is None:
            return float("nan")
        # d_i^2 (1 - p_i) / p_i^2 where the weights are not capped
        return float((self.unbiased**2 * (1 - self.probabilities)) @ self._residuals)

    @property
    def condition(self) -> float:
        """Of the basis' Gram matrix, where there is a basis."""
        return self.beliefs.condition

    @property
    def columns(self) -> int:
        """Of the basis in use."""
        return self.beliefs.columns

    @cached_property
    def _residuals(self) -> Floats:
        before = self.beliefs.before
        return self.squared_norms if before is None else before.residuals(self.squared_norms)


def _positive(values: Floats) -> Floats:
    """nan for zero: what is divided by it is not known."""
    return np.where(values > 0, values, np.nan)
