"""The norm bound against its reference, alone and inside a rule."""

from __future__ import annotations

import numpy as np
import pytest

from fedsteer import Round, make_rule
from fedsteer.steering.bounds import NormBound
from tests.reference.norm_bound import NaiveNormBound
from tests.rules.enrolled import DIM, SIZES, events


@pytest.mark.parametrize("rho", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("name", ["fedvarp", "fedavg", "mifa"])
def test_a_bounded_rule_is_the_rule_scaled_by_the_reference(name: str, rho: float) -> None:
    """Clients join, change their size and leave meanwhile."""
    bounded, free = make_rule(name, norm_bound=rho), make_rule(name)
    naive = NaiveNormBound(rho, dict(enumerate(SIZES)))
    one, other = bounded.init(DIM, SIZES), free.init(DIM, SIZES)
    acted = 0
    for event in events(1, rounds=60):
        if event.leaving:
            one, other = bounded.leave(one, event.leaving), free.leave(other, event.leaving)
            naive.leave(event.leaving)
            continue
        given = Round(
            number=event.number,
            clients=event.clients,
            updates=event.updates,
            probabilities=event.probabilities,
            sizes=event.sizes,
        )
        scaled, plain = bounded.step(one, given), free.step(other, given)
        one, other = scaled.state, plain.state
        expected = naive.step(plain.delta, event.clients, event.updates, event.sizes)
        np.testing.assert_allclose(scaled.delta, expected, rtol=1e-10, atol=1e-12)
        found = scaled.diagnostics
        assert found.delta_norm == pytest.approx(float(np.linalg.norm(expected)), abs=1e-12)
        assert 0 < found.bound_factor <= 1
        acted += found.bound_factor < 1
    assert acted > 10 if rho < 1 else acted < 40


def test_by_hand() -> None:
    bound = NormBound(factor=0.5)
    slots, none = np.array([0, 1]), np.zeros(2)
    norms, sizes = np.array([2.0, 6.0]), np.array([1.0, 3.0])
    assert bound.judge(10.0, slots, norms, none, sizes) == 0.25
    assert bound.judge(1.0, slots, norms, none, sizes) == 1.0
    assert bound.judge(0.0, slots, norms, none, sizes) == 1.0
    assert bound.judge(10.0, slots[:0], none[:0], none[:0], none[:0]) == 1.0
    bound.keep(slots, norms, none, sizes, norms)
    assert (bound.weighted, bound.weight) == (20.0, 4.0)
    bound.forget(np.array([1]), np.array([3.0]))
    assert (bound.weighted, bound.weight) == (2.0, 1.0)
    # Back with another size, while the other one changed its size without a word of its norm.
    norm = np.array([4.0])
    bound.keep(np.array([1]), norm, np.array([0.0]), np.array([2.0]), norm)
    assert (bound.weighted, bound.weight) == (10.0, 3.0)


def test_a_client_never_heard_of_is_forgotten_without_a_trace() -> None:
    bound = NormBound(factor=0.5)
    bound.forget(np.array([9]), np.array([5.0]))
    assert (bound.weighted, bound.weight) == (0.0, 0.0)


def test_the_bound_ends_an_explosion() -> None:
    """One update weighted by 1/p = 1000 no longer throws the model away."""
    rule = make_rule("fedavg", norm_bound=0.5)
    step = rule.step(
        rule.init(2, [1.0, 1.0]),
        Round(number=1, clients=[0], updates=np.array([[3.0, 4.0]]), probabilities=[0.001]),
    )
    assert np.linalg.norm(step.delta) == pytest.approx(2.5)
    assert step.diagnostics.bound_factor == pytest.approx(0.001)


@pytest.mark.parametrize("length", [1e9, 1e18, 1e60])
def test_one_huge_update_is_forgotten_with_the_next(length: float) -> None:
    """A single running sum would keep its rounding error, of either sign, for good."""
    draw = np.random.default_rng(4)
    bound, sizes = NormBound(factor=1.0), draw.uniform(1, 9, 6)
    everybody, none = np.arange(6), np.zeros(6)
    norms = draw.uniform(1, 2, 6)
    bound.keep(everybody, norms, none, sizes, norms)
    for _ in range(5):
        norms = draw.uniform(1, 2, 6)
        norms[draw.integers(6)] = length * draw.uniform(1, 2)
        bound.keep(everybody, norms, sizes, sizes, norms)
        norms = draw.uniform(1, 2, 6)
        mean = sizes @ norms / sizes.sum()
        factor = bound.judge(10.0, everybody, norms, sizes, sizes)
        assert 10.0 * factor == pytest.approx(mean, rel=1e-9)
        bound.keep(everybody, norms, sizes, sizes, norms)
        rest = everybody[1:]  # absent clients count with their last known norm
        factor = bound.judge(10.0, rest, norms[1:], sizes[1:], sizes[1:])
        if length < 1e20:
            assert 10.0 * factor == pytest.approx(mean, rel=1e-9)
