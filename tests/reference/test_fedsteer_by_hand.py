"""FedSteer's reference and what belongs to it (core set, probabilities, bound) by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.reference.coreset import brute_force_swaps, naive_search, objective
from tests.reference.fedsteer import NaiveFedSteer
from tests.reference.norm_bound import NaiveNormBound
from tests.reference.participation import NaiveIntervals, NaiveVisits

NOBODY = ([], np.zeros((0, 2)), [])


def steer_rounds(last_probability: float = 1.0, **options) -> tuple[NaiveFedSteer, list]:
    rule = NaiveFedSteer(2, {0: 1, 1: 1}, core_set=[0], **options)
    deltas = [
        rule.step(1, [0], [[3, 4]], [0.5]),
        rule.step(2, [1], [[5, 0]], [0.5]),
        rule.step(3, [0], [[0, 2]], [last_probability]),
        rule.step(4, *NOBODY),
    ]
    return rule, deltas


def test_fedsteer_by_hand() -> None:
    """q = (.6, .8) after round 1, s_1 = 3 / 1.5 in round 2, s_0 = 1.6 / 1.5 and q = (0, 1) in 3."""
    rule, deltas = steer_rounds()
    assert_allclose(deltas, [[3, 4], [5, 0], [0.6, 1.8], [0, 1 + 8 / 15]])
    assert_allclose(rule.basis(), [[0], [1]])
    assert_allclose(rule.coordinates(0), [16 / 15])
    assert_allclose(rule.estimate(1), [0, 2])

    rule, deltas = steer_rounds(magnitude="follow")
    assert_allclose(deltas, [[3, 4], [5, 0], [0.6, 1.8], [0, 0.4 + 16 / 75]])
    assert_allclose(rule.coordinates(1), [0.4])

    _, deltas = steer_rounds(refresh="before", last_probability=0.5)
    assert_allclose(deltas[2], [0.28, 2.8 - 0.32 * 4 / 3])

    rule, deltas = steer_rounds(basis="mean")
    assert_allclose(rule.coordinates(1), [15 / 25.5])
    assert_allclose(deltas[2], np.array([3, 4]) * 7.5 / 25.5 + [0, 1])


def test_fedsteer_refresh_only() -> None:
    rule = NaiveFedSteer(2, None, core_set=[0])
    rule.step(1, [0], [[3, 4]], [0.5])  # n = 2
    delta = rule.step(2, [1, 0], [[5, 0], [0, 9]], [0.1, 0.1], refresh=[1, 0])  # n = 2 / 2
    assert_allclose(delta, [0, 0])
    assert_allclose(rule.basis(), [[0.6], [0.8]])
    assert_allclose(rule.coordinates(1), [2])
    assert_allclose(rule.coordinates(0), [7.2 / 1.5])
    # The mean is 2/3, less than the two points that are there: every client weighs 1/2.
    assert_allclose(rule.step(3, *NOBODY), 0.5 * (2 + 4.8) * np.array([0.6, 0.8]))


def test_fedsteer_leaving_core_client_and_zero_update() -> None:
    rule = NaiveFedSteer(2, {0: 1, 1: 1, 2: 1}, core_set=[0, 1], ridge=0)
    rule.step(1, [0, 1], [[2, 0], [1, 1]], [1, 1])
    rule.step(2, [2], [[3, 4]], [1])
    assert_allclose(rule.coordinates(2), [-1, 4 * np.sqrt(2)])
    assert_allclose(rule.estimate(2), [3, 4])
    rule.leave([1])
    assert_allclose(rule.basis(), [[1, 0], [0, 0]])
    assert_allclose(rule.coordinates(2), [-1, 0])
    rule.step(3, [1], [[0, 5]], [1], [1])
    assert_allclose(rule.estimate(2), [-1, 0])
    rule.step(4, [0], [[0, 0]], [1])
    assert_allclose(rule.basis(), [[0, 0], [0, 1]])
    rule.step(5, [2], [[3, 4]], [1])
    assert_allclose(rule.coordinates(2), [0, 4])


def test_ridge_coordinates_minimise_the_penalised_error() -> None:
    draw = np.random.default_rng(1)
    rule = NaiveFedSteer(6, None, core_set=[0, 1, 2], ridge=0.7)
    updates = draw.normal(size=(3, 6))
    rule.step(1, [0, 1, 2], updates, [1, 1, 1])
    target = draw.normal(size=6)
    rule.step(2, [9], [target], [1])
    basis = rule.basis()
    stacked = np.vstack([basis, np.sqrt(0.7) * np.eye(3)])
    best = np.linalg.lstsq(stacked, np.concatenate([target, np.zeros(3)]), rcond=None)[0]
    assert_allclose(rule.coordinates(9), best, atol=1e-12)


def test_core_set_objective_and_swaps_by_hand() -> None:
    G = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.0]])
    weights = [1.0, 2.0, 1.0, 1.0]
    # unit columns: a covered client costs lambda / (1 + lambda) |g|^2, an orthogonal one |g|^2
    assert objective(G, weights, [0], 1.0) == pytest.approx(4 / 2 + 2 + 9 / 2)
    assert objective(G, weights, [0, 1], 0.0) == pytest.approx(0.0)
    assert objective(G, weights, [3], 1.0) == pytest.approx(15.0)
    swaps = brute_force_swaps(G, weights, [1], 1.0)
    assert set(swaps) == {(1, 0), (1, 2)}
    assert swaps[1, 0] == pytest.approx(8.5)
    assert naive_search(G, weights, [1], 1.0, 5) == [0]
    assert naive_search(G, weights, [1], 1.0, 0) == [1]
    # [0, 2] costs 13/3 + 2 at lambda = 1 and [0, 1] 13/2 + 1; at .1 it is 13/21 + 2 and 15/11
    assert naive_search(G, weights, [0, 2], 1.0, 5) == [0, 2]
    assert naive_search(G, weights, [0, 2], 0.1, 5) in ([1, 2], [0, 1])
    assert naive_search(G, weights, [1], 1.0, 5, candidates=[3]) == [1]


def test_core_set_objective_is_the_trace_formula() -> None:
    draw = np.random.default_rng(2)
    G = draw.normal(size=(6, 4))
    weights = draw.random(6)
    core = [4, 1, 2]
    columns = (G / np.linalg.norm(G, axis=1, keepdims=True))[core]
    products = columns @ G.T
    inverse = np.linalg.inv(columns @ columns.T + 0.5 * np.eye(3))
    explained = np.trace(inverse @ (products * weights) @ products.T)
    total = np.sum(weights * np.sum(G**2, axis=1))
    assert objective(G, weights, core, 0.5) == pytest.approx(total - explained)


def test_intervals_by_hand() -> None:
    """Visits in rounds 2 and 5: intervals 2, 3; with cap 2 the intervals are 2, 2, 1."""
    rounds = [[], ["a"], [], [], ["a"], ["a"]]
    free, capped = NaiveIntervals(), NaiveIntervals(cap=2)
    weights = []
    for number, clients in enumerate(rounds, start=1):
        weights += free.step(number, clients)
        capped.step(number, clients)
    assert_allclose(weights, [1, 2, 2.5])
    assert_allclose([capped.inverse("a", number) for number in range(1, 7)], [1, 1, 2, 2, 2, 5 / 3])
    assert NaiveIntervals(cap=3).inverse("never", 10) == 3


def test_visits_by_hand() -> None:
    rule = NaiveVisits()
    assert rule.step(1, []) == []
    assert rule.step(2, ["a"]) == [2]
    assert rule.step(3, ["a", "b"]) == [1.5, 3]


def test_norm_bound_by_hand() -> None:
    bound = NaiveNormBound(0.5, {0: 1, 1: 3, 2: 9})
    assert_allclose(bound.step([6, 8], [0], [[0, 2]]), [0.6, 0.8])  # b = 2
    assert_allclose(bound.step([6, 8], [1], [[6, 0]]), [1.5, 2])  # b = (2 + 18) / 4
    assert_allclose(bound.step([0.6, 0.8], *NOBODY[:2]), [0.6, 0.8])
    bound.leave([1])
    assert_allclose(bound.step([6, 8], *NOBODY[:2]), [0.6, 0.8])
    assert_allclose(bound.step([0, 0], *NOBODY[:2]), [0, 0])
    assert_allclose(NaiveNormBound(0.5).step([6, 8], *NOBODY[:2]), [6, 8])
