"""The references against numbers worked out by hand, against theory and against each other."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.reference.cluster_fedvarp import NaiveClusterFedVARP
from tests.reference.fedavg import NaiveFedAvg
from tests.reference.fedawe import NaiveFedAWE
from tests.reference.fedprox import NaiveFedProx
from tests.reference.fedstale import NaiveFedStale
from tests.reference.fedsteer import NaiveFedSteer
from tests.reference.fedvarp import NaiveFedVARP
from tests.reference.mifa import NaiveMIFA
from tests.reference.scaffold import NaiveScaffold

NOBODY = ([], np.zeros((0, 2)), [])
SIZES = {0: 1, 1: 2, 2: 5}

ESTIMATING: dict[str, Callable[[], object]] = {
    "fedavg": lambda: NaiveFedAvg(2, SIZES),
    "fedprox": lambda: NaiveFedProx(2, SIZES),
    "fedvarp": lambda: NaiveFedVARP(2, SIZES),
    "cluster_fedvarp": lambda: NaiveClusterFedVARP(2, SIZES, {0: 0, 1: 0, 2: 1}, 2),
    "fedstale": lambda: NaiveFedStale(2, SIZES),
    "fedstale adaptive": lambda: NaiveFedStale(2, SIZES, adaptive=True),
    "fedsteer": lambda: NaiveFedSteer(2, SIZES, core_set=[2, 0]),
    "fedsteer without ridge": lambda: NaiveFedSteer(2, SIZES, core_set=[2, 0, 1], ridge=0),
    "fedsteer follow": lambda: NaiveFedSteer(2, SIZES, core_set=[2, 0], magnitude="follow"),
    "fedsteer mean": lambda: NaiveFedSteer(2, SIZES, core_set=[2, 0], basis="mean"),
}


def history(rule, seed: int = 3, rounds: int = 6) -> np.random.Generator:
    """Some rounds of random participation, so that the rule remembers something."""
    draw = np.random.default_rng(seed)
    for number in range(1, rounds + 1):
        clients = [client for client in range(3) if draw.random() < 0.6]
        rule.step(number, clients, draw.normal(size=(len(clients), 2)), [0.6] * len(clients))
    return draw


def expectation(make: Callable[[], object], updates: np.ndarray, probabilities: list[float]):
    """E[Delta] over the 2^3 sets of active clients, each after the same history."""
    mean = np.zeros(2)
    for there in product([False, True], repeat=3):
        chance = 1.0
        for is_there, probability in zip(there, probabilities, strict=True):
            chance *= probability if is_there else 1 - probability
        clients = [client for client in range(3) if there[client]]
        rule = make()
        history(rule)
        active = [probabilities[client] for client in clients]
        mean += chance * rule.step(7, clients, updates[clients], active)
    return mean


@pytest.mark.parametrize("name", ESTIMATING)
def test_delta_is_unbiased(name: str) -> None:
    updates = np.array([[1.0, 2.0], [-3.0, 0.5], [0.0, 4.0]])
    mean = expectation(ESTIMATING[name], updates, [0.2, 0.5, 0.9])
    assert_allclose(mean, (updates[0] + 2 * updates[1] + 5 * updates[2]) / 8, atol=1e-12)


def test_bias_of_refresh_before() -> None:
    """E[Delta] - sum d_i g_i = -sum_i d_i (1 - p_i) Q (s_i* - s_i)."""
    updates = np.array([[1.0, 2.0], [-3.0, 0.5], [0.0, 4.0]])
    probabilities = [0.2, 0.5, 0.9]

    def make() -> NaiveFedSteer:
        return NaiveFedSteer(2, SIZES, core_set=[2, 0], refresh="before")

    rule = make()
    history(rule)
    basis = rule.basis()
    expected = np.zeros(2)
    for client in range(3):
        best = np.linalg.solve(basis.T @ basis + 0.5 * np.eye(2), basis.T @ updates[client])
        change = basis @ (best - rule.coordinates(client))
        weight = SIZES[client] / 8
        expected += weight * (updates[client] - (1 - probabilities[client]) * change)
    assert_allclose(expectation(make, updates, probabilities), expected, atol=1e-12)


def test_bias_of_the_cap() -> None:
    """E[Delta] - sum d_i g_i = -sum_i (d_i - p_i a_i)(g_i - g^_i)."""
    updates = np.array([[1.0, 2.0], [-3.0, 0.5], [0.0, 4.0]])
    probabilities = [0.2, 0.5, 0.9]

    def make() -> NaiveFedVARP:
        return NaiveFedVARP(2, SIZES, max_weight=0.3)

    rule = make()
    history(rule)
    expected = np.zeros(2)
    for client in range(3):
        weight = SIZES[client] / 8
        capped = min(weight / probabilities[client], 0.3)
        residual = updates[client] - rule.estimate(client)
        expected += weight * updates[client]
        expected -= (weight - probabilities[client] * capped) * residual
    assert_allclose(expectation(make, updates, probabilities), expected, atol=1e-12)


@pytest.mark.parametrize("name", ESTIMATING)
def test_full_participation_is_fedavg(name: str) -> None:
    rule = ESTIMATING[name]()
    draw = history(rule)
    for number in range(7, 10):
        updates = draw.normal(size=(3, 2))
        delta = rule.step(number, [2, 0, 1], updates, [1.0, 1.0, 1.0])
        assert_allclose(delta, (5 * updates[0] + updates[1] + 2 * updates[2]) / 8, atol=1e-12)


@pytest.mark.parametrize("sizes", [None, SIZES])
@pytest.mark.parametrize("magnitude", ["fixed", "follow"])
def test_own_coordinates_are_fedvarp_and_fedstale(sizes, magnitude: str) -> None:
    own = {"core_set": [2, 0, 1], "coordinates": "own", "magnitude": magnitude}
    pairs = [
        (NaiveFedSteer(2, sizes, **own), NaiveFedVARP(2, sizes)),
        (NaiveFedSteer(2, sizes, own_scale=0.3, **own), NaiveFedStale(2, sizes, beta=0.3)),
    ]
    draw = np.random.default_rng(5)
    for number in range(1, 12):
        clients = [client for client in range(3) if draw.random() < 0.4]
        updates = draw.normal(size=(len(clients), 2))
        new = [float(1 + draw.integers(4)) for _ in clients] if number % 3 == 0 else None
        for steer, other in pairs:
            delta = steer.step(number, clients, updates, [0.4] * len(clients), new)
            expected = other.step(number, clients, updates, [0.4] * len(clients), new)
            assert_allclose(delta, expected, atol=1e-12)
            if number == 6:
                steer.leave([1])
                other.leave([1])
                if sizes is not None:
                    for rule in (steer, other):
                        rule.step(number, [1], np.ones((1, 2)), [0.5], [2.0])
            for client in range(3):
                assert_allclose(steer.estimate(client), other.estimate(client), atol=1e-12)


def test_clusters_of_one_are_fedvarp() -> None:
    cluster = NaiveClusterFedVARP(2, SIZES, {0: 2, 1: 0, 2: 1}, 3)
    varp = NaiveFedVARP(2, SIZES)
    draw = np.random.default_rng(6)
    for number in range(1, 8):
        clients = [client for client in range(3) if draw.random() < 0.5]
        updates = draw.normal(size=(len(clients), 2))
        delta = cluster.step(number, clients, updates, [0.5] * len(clients))
        assert_allclose(delta, varp.step(number, clients, updates, [0.5] * len(clients)))


def test_fedavg_by_hand() -> None:
    round_one = (1, [0, 1], [[0, 2], [4, 0]], [1.0, 0.5])
    sizes = {0: 1, 1: 3}
    assert_allclose(NaiveFedAvg(2, sizes).step(*round_one), [6, 0.5])
    assert_allclose(NaiveFedAvg(2, sizes, average="participants").step(*round_one), [3, 0.5])
    normalised = NaiveFedAvg(2, sizes, average="normalised")
    assert_allclose(normalised.step(*round_one), [6 / 1.75, 0.5 / 1.75])
    assert_allclose(NaiveFedAvg(2, sizes, max_weight=1.0).step(*round_one), [4, 0.5])
    for average in ("importance", "participants", "normalised"):
        assert_allclose(NaiveFedAvg(2, sizes, average=average).step(1, *NOBODY), [0, 0])


def test_population_by_hand() -> None:
    rule = NaiveFedVARP(2, {"a": 1, "b": 1})
    assert_allclose(rule.step(1, ["a"], [[4, 0]], [0.5]), [4, 0])
    # newcomer: n = 4, baseline a: 1/4 (4, 0), newcomer 2/4 (0, 2)
    assert_allclose(rule.step(2, ["c"], [[0, 2]], [1.0], [2]), [1, 1])
    with pytest.raises(ValueError):
        rule.step(3, ["d"], [[0, 2]], [1.0])
    # new size of b: n = 1 + 5 + 2 = 8, its weight 5/8, baseline 1/8 (4, 0) + 2/8 (0, 2)
    assert_allclose(rule.step(3, ["b"], [[8, 0]], [1.0], [5]), [0.5 + 5, 0.5])
    rule.leave(["a"])
    assert_allclose(rule.estimate("a"), [0, 0])
    assert_allclose(rule.step(4, *NOBODY), [40 / 7, 4 / 7])


def test_open_population_by_hand() -> None:
    rule = NaiveFedVARP(2, None)
    assert_allclose(rule.step(1, ["a"], [[1, 0]], [0.5]), [1, 0])  # n = 2
    assert_allclose(rule.step(2, *NOBODY), [1, 0])  # n = (2 + 0) / 2: one unseen, give or take 1.4
    # The mean is (2 + 0 + 2) / 3, less than the 1 + 2 points of those who are there: n = 3.
    assert_allclose(rule.step(3, ["b"], [[0, 2]], [1.0], [2]), [1 / 3, 4 / 3])
    rule.leave(["b"])
    assert_allclose(rule.step(4, *NOBODY), [1, 0])  # n = 4 / 4
    assert_allclose(NaiveFedVARP(2, None).step(1, *NOBODY), [0, 0])


def test_an_open_population_that_grows_by_hand() -> None:
    rule = NaiveFedVARP(2, None)
    for number in range(1, 9):
        rule.step(number, ["a"], [[1, 0]], [1.0])  # n = 1, and nobody is unseen
    # A hundred newcomers at p = 1/10 stand for 1,000, of variance 9,000. A quarter of that is 250:
    # themselves and 150 unseen. The mean, (8 + 1,001) / 9, is less.
    delta = rule.step(9, ["a", *range(100)], [[1, 0]] * 101, [1.0] + [0.1] * 100)
    assert_allclose(delta, [1001 / (101 + 150 - 9000**0.5 / 4), 0])


def test_cluster_fedvarp_by_hand() -> None:
    rule = NaiveClusterFedVARP(2, {0: 1, 1: 3, 2: 4}, {0: 0, 1: 0, 2: 1}, 2)
    assert_allclose(rule.step(1, [0, 1], [[4, 0], [0, 4]], [1, 1]), [0.5, 1.5])
    assert_allclose(rule.estimate(1), [1, 3])
    # 4/8 (1, 3) + 1/8 / .5 ((5, 3) - (1, 3))
    assert_allclose(rule.step(2, [0], [[5, 3]], [0.5]), [1.5, 1.5])
    rule.leave([0])
    assert_allclose(rule.step(3, *NOBODY), np.array([5, 3]) * 3 / 7)


def test_fedstale_by_hand() -> None:
    rule = NaiveFedStale(2, {0: 1, 1: 1}, beta=0.5, adaptive=True)
    assert_allclose(rule.step(1, [0], [[2, 0]], [1.0]), [1, 0])
    assert_allclose(rule.estimate(0), [1, 0])
    # .5 (1, 0) + 1 ((.5, 1) - (1, 0)); then beta_0 = 1/4
    assert_allclose(rule.step(2, [0], [[0.5, 1]], [0.5]), [0, 1])
    assert_allclose(rule.estimate(0), [0.125, 0.25])
    rule.step(3, [0], [[-1, 0]], [0.5])
    assert_allclose(rule.estimate(0), [0, 0])
    rule.step(4, [0], [[-3, 0]], [0.5])
    assert_allclose(rule.estimate(0), [-3, 0])


def test_mifa_by_hand() -> None:
    rules = {start: NaiveMIFA(2, {0: 1, 1: 3}, start) for start in ("zeros", "wait", "seen")}
    expected = [
        ([0], [[4, 0]], {"zeros": [1, 0], "wait": [0, 0], "seen": [4, 0]}),
        ([], np.zeros((0, 2)), {"zeros": [1, 0], "wait": [0, 0], "seen": [4, 0]}),
        ([1], [[0, 4]], {"zeros": [1, 3], "wait": [1, 3], "seen": [1, 3]}),
    ]
    for number, (clients, updates, deltas) in enumerate(expected, start=1):
        for start, rule in rules.items():
            assert_allclose(
                rule.step(number, clients, updates, [0.1] * len(clients)), deltas[start]
            )


def test_scaffold_by_hand() -> None:
    rule = NaiveScaffold(2, {0: 1, 1: 3}, local_rate=0.5)
    delta = rule.step(1, [0, 1], [[2, 0], [0, 4]], [1, 0.5], steps=[2, 4])
    assert_allclose(delta, [0.5, 3])
    assert_allclose(rule.client_control(0), [2, 0])
    assert_allclose(rule.client_control(1), [0, 2])
    assert_allclose(rule.control, [0.5, 1.5])
    # c_1' = (0, 2) - (.5, 1.5) + (1, 1) / 1, c += 3/4 (c_1' - c_1)
    assert_allclose(rule.step(2, [1], [[1, 1]], [0.5], steps=[2]), [1, 1])
    assert_allclose(rule.client_control(1), [0.5, 1.5])
    assert_allclose(rule.control, [0.5 + 0.375, 1.5 - 0.375])
    rule.leave([1])
    assert_allclose(rule.client_control(1), [0, 0])
    assert_allclose(rule.control, [2, 0])  # c_0: nobody else is left
    importance = NaiveScaffold(2, {0: 1, 1: 3}, local_rate=0.5, average="importance")
    assert_allclose(importance.step(1, [1], [[0, 4]], [0.5], steps=[1]), [0, 6])


def test_scaffold_full_gradient_steps_give_the_mean_gradient() -> None:
    """With one local step from c = c_i = 0, c is the mean gradient and c_i the client's own."""
    rule = NaiveScaffold(2, {0: 1, 1: 1}, local_rate=0.1)
    gradients = np.array([[1.0, 2.0], [3.0, -4.0]])
    rule.step(1, [0, 1], 0.1 * gradients, [1, 1], steps=[1, 1])
    assert_allclose(rule.control, gradients.mean(axis=0))
    assert_allclose(rule.client_control(1), gradients[1])


def test_fedawe_by_hand() -> None:
    rule = NaiveFedAWE(2, {0: 1, 1: 1, 2: 1})
    model = np.array([10.0, 0.0])
    assert_allclose(rule.step(1, *NOBODY, model=model), [0, 0])
    # both never active: gap 2, mean of (10, 0) - 2 (1, 0) and (10, 0) - 2 (0, 1)
    delta = rule.step(2, [0, 1], [[1, 0], [0, 1]], model=model)
    assert_allclose(delta, [1, 1])
    model = model - delta
    assert_allclose(rule.start(1), [9, -1])
    assert_allclose(rule.start(2), [10, 0])
    # client 1: (9, -1) - (3 - 2) (1, 1), client 2: (10, 0) - 3 (0, 1)
    delta = rule.step(3, [1, 2], [[1, 1], [0, 1]], model=model)
    assert_allclose(model - delta, [9, -2.5])
    assert_allclose(rule.start(0), [9, -1])
    assert_allclose(rule.start(2), [9, -2.5])
    # a stranger joins: (9, -2.5) - (4, 0), whatever was before
    delta = rule.step(9, [3], [[4, 0]], model=[9.0, -2.5])
    assert_allclose(delta, [4, 0])
