"""Intervals against hand-computed numbers and exact formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedsteer.report.statistics import Estimate, estimate, t_quantile


def student_below(t: float, freedom: int) -> float:
    """P(T <= t) by Simpson's rule on the density: slow, independent of any table."""
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    x = np.linspace(0, t, 20001)
    density = constant / math.sqrt(freedom * math.pi) * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    weights = np.where(np.arange(x.size) % 2, 4.0, 2.0)
    weights[[0, -1]] = 1
    return 0.5 + float(density @ weights) * (x[1] - x[0]) / 3


@pytest.mark.parametrize("freedom", [*range(1, 36), 60, 120, 1000])
def test_quantiles_leave_two_and_a_half_percent_above(freedom: int) -> None:
    # Four decimals of the quantile are worth half of 1e-4 times the density there, about 0.06.
    assert student_below(t_quantile(freedom), freedom) == pytest.approx(0.975, abs=5e-6)


def test_quantiles_fall_towards_the_normal() -> None:
    values = [t_quantile(freedom) for freedom in range(1, 200)]
    assert all(one > next_ for one, next_ in itertools.pairwise(values))
    assert t_quantile(10**6) == pytest.approx(1.959964, abs=1e-5)


def test_no_freedom_no_quantile() -> None:
    with pytest.raises(ValueError, match="at least one degree"):
        t_quantile(0)


def test_three_values_by_hand() -> None:
    # mean 0.8, deviations -0.02 0 0.02: s = 0.02, half = 4.3027 * 0.02 / sqrt(3)
    found = estimate([0.78, 0.8, 0.82])
    assert found is not None
    assert found.mean == pytest.approx(0.8)
    assert found.half == pytest.approx(4.3027 * 0.02 / math.sqrt(3), rel=1e-4)
    assert found.count == 3


def test_what_is_missing_is_not_counted() -> None:
    assert estimate([None, 0.5, float("nan")]) == Estimate(mean=0.5, half=None, count=1)
    assert estimate([]) is None
    assert estimate([None]) is None


def test_interval_covers_as_often_as_it_says() -> None:
    samples = np.random.default_rng(0).normal(3.0, 2.0, (4000, 5))
    found = [estimate(row) for row in samples]
    covered = np.mean([abs(one.mean - 3.0) <= (one.half or 0) for one in found if one])
    assert covered == pytest.approx(0.95, abs=0.012)
