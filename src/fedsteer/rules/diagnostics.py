"""What a step returns, and what it reports about itself from numbers of size m and k.

With g^_i what the rule believed of client i before it had g_i, and a_i = d_i/p_i:

    residual     r_i = |g_i|^2 - 2 g_i . g^_i + |g^_i|^2
    variance     sum_A a_i^2 (1 - p_i) r_i              Theorem 1, estimated from the active clients

A server may take thousands of steps and look at none of this: it is computed when first read.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedsteer.rules.algorithm import Action, Beliefs
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats, Integers
from fedsteer.steering.state import State

NEXT_TO_NOTHING = 0.01
"""An update with a smaller factor is worth a warning: honest ones are never cut down so far."""


def _empty() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """What happened in a step, per client and in total."""

    phase: str  # "train" or "warm-up"
    number: int = 0  # of the round
    clients: tuple[ClientId, ...] = ()
    fresh: tuple[bool, ...] = ()  # False: asked only to refresh
    weights: Floats = field(default_factory=_empty)  # the factor of g_i in the aggregate
    delta_norm: float = 0.0  # 0 if the model stands still
    bound_factor: float = 1.0  # the norm bound scaled delta by this; 1: it did not act
    step_factor: float = 1.0  # and the aligned step by this
    alignment: float = math.nan  # cosine of delta and the mean of those before it
    update_factors: Floats | None = None  # what shortened each update; None: all are whole
    trust: float = 1.0  # what estimates of absent clients counted for
    sizes: Floats = field(default_factory=_empty)  # n_i used
    claimed_sizes: Floats | None = None  # n_i as reported; None: nothing was
    dropped: Mapping[ClientId, str] = field(default_factory=dict)
    gone: Mapping[ClientId, int] = field(default_factory=dict)  # left after these rounds of silence
    fading: Mapping[ClientId, int] = field(default_factory=dict)  # half way there
    core_set: tuple[ClientId, ...] = ()
    # Everything else follows from these. Nothing may be of size d, because diagnostics are kept.
    squared_norms: Floats = field(default_factory=_empty)  # |g_i|^2
    inverse_probabilities: Floats = field(default_factory=_empty)  # 1 / p_i
    last_seen: Floats | Integers = field(default_factory=_empty)  # rounds; 0: never before
    unbiased: Floats | None = None  # a_i, if the rule weights by them and this is no warm-up
    believe: Callable[[], Beliefs] = Beliefs

    @cached_property
    def beliefs(self) -> Beliefs:
        """What the rule believed of these updates."""
        return self.believe()

    @cached_property
    def probabilities(self) -> Floats:
        """p_i used."""
        return 1.0 / self.inverse_probabilities

    @cached_property
    def disbelieved(self) -> Mapping[ClientId, float]:
        """Numbers of data points that were reported, if they are far from what was believed."""
        if self.claimed_sizes is None:
            return {}
        reports = zip(self.clients, self.claimed_sizes.tolist(), self.sizes.tolist(), strict=True)
        return {c: claim for c, claim, used in reports if not used / 2 <= claim <= 2 * used}

    @cached_property
    def cut_down(self) -> Mapping[ClientId, float]:
        """Factors of the updates that `update_bound` left next to nothing of."""
        if self.update_factors is None:
            return {}
        factors = zip(self.clients, self.update_factors.tolist(), strict=True)
        return {client: factor for client, factor in factors if factor < NEXT_TO_NOTHING}

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
        """|g_i - estimate|^2 / |g_i|^2 of the estimate before the refresh; nan if g_i is 0."""
        return self._residuals / _positive(self.squared_norms)

    @cached_property
    def refreshed_errors(self) -> Floats:
        """The same for coordinates recomputed from g_i itself."""
        refreshed = self.beliefs.after.residuals(self.squared_norms)
        return refreshed / _positive(self.squared_norms)

    @cached_property
    def cosines(self) -> Floats:
        """Between g_i and the estimate before the refresh; nan without an estimate."""
        before = self.beliefs.before
        lengths = np.sqrt(_positive(self.squared_norms)) * np.sqrt(_positive(before.squares))
        return before.products / lengths

    @cached_property
    def variance(self) -> float:
        """Of the aggregate; nan in a warm-up and for rules that do not weight by d_i/p_i."""
        if self.unbiased is None:
            return float("nan")
        # d_i^2 (1 - p_i) / p_i^2 unless the weights are capped
        return float((self.unbiased**2 * (1 - self.probabilities)) @ self._residuals)

    @property
    def condition(self) -> float:
        """Condition number of the basis' Gram matrix; nan without a basis."""
        return self.beliefs.condition

    @property
    def columns(self) -> int:
        """Columns of the basis in use."""
        return self.beliefs.columns

    @cached_property
    def _residuals(self) -> Floats:
        return self.beliefs.before.residuals(self.squared_norms)


@dataclass(frozen=True, kw_only=True)
class Step:
    """The result of a step: w <- w - rate * delta if action is "move"."""

    delta: Array  # (d,) float32, or float64 for float64 updates; zeros if action is "hold"
    state: State
    diagnostics: Diagnostics
    action: Action = "move"


def _positive(values: Floats) -> Floats:
    """The values, with nan in place of zero."""
    return np.where(values > 0, values, np.nan)
