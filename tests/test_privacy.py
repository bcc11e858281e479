"""Clipping, noise and what they cost, against brute force and closed forms."""

from __future__ import annotations

import math
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest

from fedsteer import ConfigurationError, privacy
from fedsteer.privacy import Ledger, Privacy, epsilon, release, secret_normals

CLIP_ONLY = Privacy(clip=0.5, noise=0.0)


def same_draws(count: int) -> Any:
    return np.random.default_rng(3).standard_normal(count)


def test_what_is_released_of_two_neighbours_differs_by_at_most_two_clips() -> None:
    """Neighbouring rounds differ in one client's update, in any way."""
    numbers = [-1e30, -1.0, -0.25, 0.0, 1e-30, 0.25, 3.0, 1e30]
    vectors = [np.array(one, np.float32) for one in product(numbers, repeat=2)]
    others = [np.array([0.3, 0.1], np.float32), np.array([5.0, 5.0], np.float32)]
    for mechanism in (CLIP_ONLY, Privacy(clip=0.5, noise=2.0)):
        rounds = [
            np.concatenate([release(one, mechanism, same_draws) for one in [*others, vector]])
            for vector in vectors
        ]
        largest = max(np.linalg.norm(a - b) for a in rounds for b in rounds)
        assert largest == pytest.approx(2 * 0.5)  # of opposite updates, and of none more


def test_short_updates_keep_their_length_and_long_ones_their_direction() -> None:
    short, long = np.array([0.3, 0.4], np.float32), np.array([3e30, -4e30], np.float32)
    np.testing.assert_array_equal(release(short, CLIP_ONLY, same_draws), short)
    np.testing.assert_allclose(release(long, CLIP_ONLY, same_draws), [0.3, -0.4], rtol=1e-6)
    np.testing.assert_array_equal(release(0 * short, CLIP_ONLY, same_draws), 0 * short)
    assert release(short, Privacy(), same_draws) is short


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_of_an_update_that_is_not_finite_nothing_is_released(bad: float) -> None:
    assert np.isnan(release(np.array([1.0, bad, 2.0]), CLIP_ONLY, same_draws)).all()


def test_the_noise_is_as_long_as_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    update = np.full(100_001, 1.0, np.float32)
    found = release(update, Privacy(clip=0.5, noise=3.0), secret_normals)
    noise = found - release(update, CLIP_ONLY, secret_normals)
    assert np.std(noise) == pytest.approx(1.5, rel=0.02)
    assert abs(np.mean(noise)) < 5 * 1.5 / math.sqrt(len(noise))
    whole = release(update, Privacy(clip=0.5, noise=3.0), np.random.default_rng(0).standard_normal)
    monkeypatch.setattr(privacy, "BLOCK", 1000)
    part = release(update, Privacy(clip=0.5, noise=3.0), np.random.default_rng(0).standard_normal)
    np.testing.assert_allclose(part, whole, rtol=1e-6)
    assert part.dtype == np.float32


def test_secret_draws_are_normal_and_cannot_be_repeated() -> None:
    first, second = secret_normals(200_001), secret_normals(200_001)
    for draws in (first, second):
        assert len(draws) == 200_001 and np.isfinite(draws).all()
        for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
            assert np.mean(draws**power) == pytest.approx(moment, abs=0.15)
        assert np.mean(np.abs(draws) < 1.959964) == pytest.approx(0.95, abs=0.005)
    half = len(first) // 2
    for pair in ((first, second), (first[:half], first[half : 2 * half])):
        assert abs(np.corrcoef(*pair)[0, 1]) < 0.02


def test_secret_draws_are_finite_whatever_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for byte in (b"\x00", b"\xff"):
        monkeypatch.setattr(privacy.os, "urandom", lambda count, byte=byte: byte * count)
        assert np.isfinite(secret_normals(5)).all()


def delta_of(multiplier: float, cost: float) -> float:
    """The analytic Gaussian mechanism, Balle and Wang 2018, theorem 8, for sensitivity 1."""

    def below(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    half, rest = 1 / (2 * multiplier), cost * multiplier
    return below(half - rest) - math.exp(cost) * below(-half - rest)


@pytest.mark.parametrize("noise", [1.0, 2.0, 10.0, 100.0])
@pytest.mark.parametrize("releases", [1, 7, 150])
def test_epsilon_is_that_of_the_analytic_gaussian_mechanism(noise: float, releases: int) -> None:
    pytest.importorskip("dp_accounting")
    found = epsilon(Privacy(clip=3.0, noise=noise), releases)
    if found < 600:  # beyond, the formula overflows
        multiplier = noise / 2 / math.sqrt(releases)
        assert delta_of(multiplier, found) == pytest.approx(1e-5, rel=1e-3)
    rho = releases / (2 * (noise / 2) ** 2)  # by Renyi's divergence (Mironov 2017): looser
    assert found < rho + 2 * math.sqrt(rho * math.log(1e5)) < 2 * found


@pytest.mark.parametrize("releases", [1, 10, 150])
def test_epsilon_agrees_with_accountants_that_compose(releases: int) -> None:
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    found = epsilon(Privacy(clip=1.0, noise=10.0), releases)
    for accountant, looser in ((PLDAccountant(), 1.001), (RdpAccountant(), 1.2)):
        accountant.compose(accounting.GaussianDpEvent(5.0), releases)
        assert found <= accountant.get_epsilon(1e-5) * 1.0001 < looser * found


def test_one_release_of_multiplier_one() -> None:
    """Dwork and Roth's classical bound, made for epsilon below 1, says 4.84."""
    pytest.importorskip("dp_accounting")
    assert epsilon(Privacy(clip=1.0, noise=2.0), 1) == pytest.approx(4.377, abs=1e-3)


def test_no_release_costs_nothing_and_no_noise_everything() -> None:
    assert epsilon(Privacy(clip=1.0), 0) == 0.0
    assert epsilon(CLIP_ONLY, 1) == math.inf


def test_a_client_is_within_budget_until_its_next_release_would_exceed_it() -> None:
    pytest.importorskip("dp_accounting")
    ledger = Ledger(Privacy(clip=1.0, noise=10.0, budget=2.5))
    most = next(count for count in range(100) if epsilon(ledger.privacy, count + 1) > 2.5)
    for _ in range(most):
        assert ledger.within("a")
        ledger.count(["a"])
    assert not ledger.within("a") and ledger.within("b") and most > 1
    ledger.count(["b"])
    assert ledger.columns() == ledger.columns("a") == {"epsilon": epsilon(ledger.privacy, most)}
    assert ledger.columns("b") == {"epsilon": epsilon(ledger.privacy, 1)}
    again = Ledger(ledger.privacy)
    again.restore([["b", 2], ["c", 1]])
    again.restore(ledger.pack())
    assert again.releases == {"a": most, "b": 2, "c": 1}


def test_without_privacy_nothing_is_counted() -> None:
    ledger = Ledger(Privacy())
    ledger.count(["a"])
    assert ledger.within("a") and not ledger.releases and ledger.columns() == {}


def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for options, words in (
        ({"noise": 2.0}, r"privacy needs privacy\.clip"),
        ({"clip": 0.0}, r"privacy\.clip must be above 0"),
        ({"clip": 1.0, "delta": 1.0}, r"privacy\.delta must be above 0 and below 1"),
        ({"clip": 1.0, "where": "sever"}, "did you mean 'server'"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            Privacy(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="single release costs epsilon inf"):
        Ledger(Privacy(clip=1.0, noise=0.0, budget=3.0))
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigurationError, match=r"dp-accounting: pip install '\.\[privacy\]'"):
        Ledger(Privacy(clip=1.0))
