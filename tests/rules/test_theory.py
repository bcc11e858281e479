"""The paper's statements, checked exactly: expectations are sums over all participation sets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from fedsteer import Round, Rule, State, Step, make_rule
from fedsteer.rules.fedsteer.rule import FedSteerMemory

DIM = 7
SIZES = np.array([3.0, 11.0, 1.0, 6.0, 2.0, 8.0])
SHARES = SIZES / SIZES.sum()
PROBABILITIES = np.array([0.15, 0.9, 0.35, 0.5, 0.05, 0.7])
N = len(SIZES)
CORE = (4, 1, 3)
CLUSTERS = {0: 0, 1: 1, 2: 0, 3: 1, 4: 2, 5: 0}

UNBIASED: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {"average": "importance"}),
    "fedvarp": ("fedvarp", {}),
    "fedstale": ("fedstale", {"beta": 0.4}),
    "fedstale adaptive": ("fedstale", {"adaptive": True}),
    "cluster_fedvarp": ("cluster_fedvarp", {"clusters": CLUSTERS, "cluster_count": 3}),
    "cluster_fedvarp online": ("cluster_fedvarp", {"select": "online", "cluster_count": 3}),
    "fedsteer": ("fedsteer", {"core_set": CORE}),
    "fedsteer ridge 0": ("fedsteer", {"core_set": CORE, "ridge": 0.0}),
    "fedsteer follow": ("fedsteer", {"core_set": CORE, "magnitude": "follow"}),
    "fedsteer mean": ("fedsteer", {"core_set": CORE, "basis": "mean"}),
    "fedsteer own": ("fedsteer", {"core_set": CORE, "coordinates": "own"}),
    "fedsteer newcomers": ("fedsteer", {"core_set": CORE, "newcomers": "learnt"}),
    "fedsteer online": (
        "fedsteer",
        {"select": "online", "core_size": 3, "reselect_every": 2, "sketch_width": 7},
    ),
}


def with_history(rule: Rule, seed: int = 0, rounds: int = 9) -> State:
    """A state that remembers something; one client was never seen."""
    draw = np.random.default_rng(seed)
    state = rule.init(DIM, SIZES)
    for number in range(1, rounds + 1):
        active = [client for client in range(N - 1) if draw.random() < 0.5]
        updates = draw.standard_normal((len(active), DIM))
        state = rule.step(
            state,
            Round(
                number=number, clients=active, updates=updates, probabilities=PROBABILITIES[active]
            ),
        ).state
    return state


def all_outcomes(rule: Rule, state: State, updates: Any) -> Iterator[tuple[float, Step]]:
    """(chance, step) for every set of clients that could take part in the next round."""
    number = state.clients.number + 1
    for there in product([False, True], repeat=N):
        mask = np.array(there)
        chance = float(np.prod(np.where(mask, PROBABILITIES, 1 - PROBABILITIES)))
        active = np.flatnonzero(mask)
        given = Round(
            number=number,
            clients=active.tolist(),
            updates=updates[active],
            probabilities=PROBABILITIES[active],
        )
        yield chance, rule.step(state.copy(), given)


def expected_delta(rule: Rule, state: State, updates: Any) -> Any:
    return sum(chance * step.delta for chance, step in all_outcomes(rule, state, updates))


def fresh_updates(seed: int = 99) -> Any:
    return np.random.default_rng(seed).standard_normal((N, DIM))


def memory(state: State) -> FedSteerMemory:
    own = state.memory.own  # type: ignore[attr-defined]
    assert isinstance(own, FedSteerMemory)
    return own


def basis(state: State) -> Any:
    """Q, (d, k), from the raw columns."""
    rows = memory(state).columns.rows
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T


def estimates(rule: Rule, state: State) -> Any:
    believed = rule.estimate(state, range(N))
    return np.zeros((N, DIM)) if believed is None else believed


# -- Proposition 1 ----------------------------------------------------------------------------


@pytest.mark.parametrize("label", UNBIASED)
@pytest.mark.parametrize("seed", [0, 1])
def test_proposition_1_the_aggregate_is_unbiased(label: str, seed: int) -> None:
    name, options = UNBIASED[label]
    rule = make_rule(name, **options)
    state = with_history(rule, seed)
    assert label == "fedavg" or np.abs(estimates(rule, state)).max() > 0.1
    updates = fresh_updates()
    np.testing.assert_allclose(
        expected_delta(rule, state, updates), SHARES @ updates, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("label", UNBIASED)
def test_an_aligned_step_keeps_the_direction_unbiased(label: str) -> None:
    """Its factor does not depend on who takes part: the expectation is scaled, nothing else."""
    name, options = UNBIASED[label]
    rule = make_rule(name, step="aligned", **options)
    state = with_history(rule)
    updates = fresh_updates()
    factors = {step.diagnostics.step_factor for _, step in all_outcomes(rule, state, updates)}
    assert len(factors) == 1
    factor = factors.pop()
    assert 0.02 <= factor < 1 and factor != 0.1
    np.testing.assert_allclose(
        expected_delta(rule, state, updates), factor * SHARES @ updates, rtol=0, atol=1e-12
    )


def test_refresh_before_has_the_bias_that_is_stated() -> None:
    """E[Delta] - sum d_i g_i = -sum_i d_i (1 - p_i) Q (s_i* - s_i)."""
    rule = make_rule("fedsteer", core_set=CORE, refresh="before", ridge=0.5)
    state = with_history(rule)
    updates, steered = fresh_updates(), basis(state)
    best = np.linalg.solve(steered.T @ steered + 0.5 * np.eye(3), steered.T @ updates.T)
    change = (steered @ best).T - estimates(rule, state)
    bias = -(SHARES * (1 - PROBABILITIES)) @ change
    assert np.abs(bias).max() > 0.05
    actual = expected_delta(rule, state, updates) - SHARES @ updates
    np.testing.assert_allclose(actual, bias, rtol=0, atol=1e-12)


@pytest.mark.parametrize("label", UNBIASED)
def test_a_cap_on_weights_has_the_bias_that_is_stated(label: str) -> None:
    """E[Delta] - sum d_i g_i = -sum_i (d_i - p_i a_i)(g_i - g^_i)."""
    name, options = UNBIASED[label]
    rule = make_rule(name, max_weight=0.3, **options)
    state = with_history(rule)
    updates = fresh_updates()
    capped = np.minimum(SHARES / PROBABILITIES, 0.3)
    residuals = updates - estimates(rule, state)
    bias = -(SHARES - PROBABILITIES * capped) @ residuals
    assert np.abs(bias).max() > 0.05
    actual = expected_delta(rule, state, updates) - SHARES @ updates
    np.testing.assert_allclose(actual, bias, rtol=0, atol=1e-12)


# -- Theorem 1 --------------------------------------------------------------------------------


def exact_variance(rule: Rule, state: State, updates: Any) -> float:
    outcomes = list(all_outcomes(rule, state, updates))
    mean = sum(chance * step.delta for chance, step in outcomes)
    return float(sum(chance * np.sum((step.delta - mean) ** 2) for chance, step in outcomes))


def with_coordinates(state: State, coordinates: Any) -> State:
    """The same state with other coordinates s_i."""
    changed = state.copy()
    own = memory(changed)
    own.coordinates.write(np.arange(N), coordinates)
    own.coordinates.sum_anew(SIZES[None])
    return changed


def test_theorem_1_projections_of_the_same_round_minimise_the_variance() -> None:
    """At ridge 0, moving anybody's coordinates in any direction raises the exact variance."""
    rule = make_rule("fedsteer", core_set=CORE, ridge=0.0)
    state = with_history(rule)
    updates = fresh_updates()
    best = np.linalg.lstsq(basis(state), updates.T, rcond=None)[0].T
    least = exact_variance(rule, with_coordinates(state, best), updates)
    residuals = np.sum((updates - best @ basis(state).T) ** 2, axis=1)
    stated = float(SHARES**2 * (1 - PROBABILITIES) / PROBABILITIES @ residuals)
    assert least == pytest.approx(stated, rel=1e-12)
    draw = np.random.default_rng(1)
    for size in (1e-3, 1e-1, 1.0):
        for client in range(N):
            direction = np.zeros((N, 3))
            direction[client] = draw.standard_normal(3)
            for sign in (-1, 1):
                moved = with_coordinates(state, best + sign * size * direction)
                assert exact_variance(rule, moved, updates) > least
        moved = with_coordinates(state, best + size * draw.standard_normal((N, 3)))
        assert exact_variance(rule, moved, updates) > least


def test_the_rule_itself_stores_the_minimising_coordinates() -> None:
    """Once all clients were active on a fixed basis, the next round on it is optimal."""
    rule = make_rule("fedsteer", core_set=CORE, ridge=0.0)
    state = with_history(rule)
    updates, steered = fresh_updates(), basis(state)
    number = state.clients.number + 1
    given = Round(
        number=number,
        clients=range(N),
        updates=updates,
        probabilities=np.ones(N),
        refresh=list(range(N)),
    )
    after = rule.step(state, given).state  # a refresh leaves the columns as they are
    best = np.linalg.lstsq(steered, updates.T, rcond=None)[0].T
    np.testing.assert_allclose(rule.coordinates(after, range(N)), best, atol=1e-10)


@pytest.mark.parametrize("label", UNBIASED)
def test_reported_variance_is_unbiased(label: str) -> None:
    """E[diagnostics.variance] = sum_i d_i^2 (1 - p_i)/p_i r_i = the exact variance of Delta."""
    name, options = UNBIASED[label]
    rule = make_rule(name, **options)
    state = with_history(rule)
    updates = fresh_updates()
    outcomes = all_outcomes(rule, state, updates)
    reported = sum(chance * step.diagnostics.variance for chance, step in outcomes)
    residuals = np.sum((updates - estimates(rule, state)) ** 2, axis=1)
    stated = float(SHARES**2 * (1 - PROBABILITIES) / PROBABILITIES @ residuals)
    assert reported == pytest.approx(stated, rel=1e-10)
    assert exact_variance(rule, state, updates) == pytest.approx(stated, rel=1e-10)


def test_other_diagnostics_are_those_of_the_estimate_before_the_refresh() -> None:
    rule = make_rule("fedsteer", core_set=CORE)
    state = with_history(rule)
    updates, believed = fresh_updates(), estimates(rule, state)
    condition = float(np.linalg.cond(basis(state)) ** 2)
    number = state.clients.number + 1
    found = rule.step(
        state, Round(number=number, clients=range(N), updates=updates, probabilities=PROBABILITIES)
    ).diagnostics
    lengths = np.linalg.norm(updates, axis=1)
    errors = np.sum((updates - believed) ** 2, axis=1) / lengths**2
    np.testing.assert_allclose(found.relative_errors, errors, rtol=1e-10)
    np.testing.assert_allclose(found.norms, lengths, rtol=1e-12)
    heard = np.linalg.norm(believed, axis=1) > 0
    assert heard.sum() == N - 1
    cosines = np.sum(updates * believed, axis=1)[heard]
    cosines /= (lengths * np.linalg.norm(believed, axis=1))[heard]
    np.testing.assert_allclose(found.cosines[heard], cosines, rtol=1e-10)
    assert np.isnan(found.cosines[~heard]).all()
    np.testing.assert_allclose(found.weights, SHARES / PROBABILITIES)
    np.testing.assert_allclose(found.probabilities, PROBABILITIES)
    assert found.condition == pytest.approx(condition, rel=1e-9)
    assert found.columns == 3 and found.core_set == CORE
    assert np.isnan(found.staleness[N - 1]) and (found.staleness[: N - 1] >= 1).all()


# -- Remark 2 and other identities ------------------------------------------------------------


@pytest.mark.parametrize("magnitude", ["fixed", "follow"])
@pytest.mark.parametrize(
    ("own_scale", "other"),
    [(1.0, ("fedvarp", {})), (0.35, ("fedstale", {"beta": 0.35}))],
    ids=["fedvarp", "fedstale"],
)
def test_remark_2_own_coordinates_reduce_to(
    own_scale: float, other: tuple[str, dict[str, Any]], magnitude: str
) -> None:
    everyone = tuple(range(N))
    rules = [
        make_rule(
            "fedsteer",
            core_set=everyone,
            coordinates="own",
            own_scale=own_scale,
            magnitude=magnitude,
        ),
        make_rule(other[0], **other[1]),
    ]
    states = [rule.init(DIM, SIZES) for rule in rules]
    draw = np.random.default_rng(2)
    for number in range(1, 51):
        active = np.flatnonzero(draw.random(N) < PROBABILITIES)
        updates = draw.standard_normal((len(active), DIM))
        given = Round(
            number=number,
            clients=active.tolist(),
            updates=updates,
            probabilities=PROBABILITIES[active],
        )
        steps = [rule.step(state, given) for rule, state in zip(rules, states, strict=True)]
        states = [step.state for step in steps]
        np.testing.assert_allclose(steps[0].delta, steps[1].delta, rtol=0, atol=1e-12)
        believed = [estimates(rule, state) for rule, state in zip(rules, states, strict=True)]
        np.testing.assert_allclose(believed[0], believed[1], rtol=0, atol=1e-12)
        assert steps[0].diagnostics.variance == pytest.approx(
            steps[1].diagnostics.variance, rel=1e-9, abs=1e-12
        )


def test_ridge_coordinates_on_all_clients_are_not_fedvarp() -> None:
    steer = make_rule("fedsteer", core_set=tuple(range(N)))
    varp = make_rule("fedvarp")
    apart = estimates(steer, with_history(steer)) - estimates(varp, with_history(varp))
    assert np.abs(apart).max() > 0.1


@pytest.mark.parametrize("label", UNBIASED)
def test_certain_full_participation_gives_the_full_gradient(label: str) -> None:
    """With p = 1, FedSteer, FedVARP, FedStale and FedAvg coincide, whatever they remember."""
    name, options = UNBIASED[label]
    rule = make_rule(name, **options)
    state = with_history(rule)
    number = state.clients.number + 1
    for seed in range(3):
        updates = fresh_updates(seed)
        step = rule.step(
            state,
            Round(
                number=number + seed, clients=range(N), updates=updates, probabilities=np.ones(N)
            ),
        )
        state = step.state
        np.testing.assert_allclose(step.delta, SHARES @ updates, rtol=0, atol=1e-12)
        assert step.diagnostics.variance == 0


@pytest.mark.parametrize("solver", ["cholesky", "gradient"])
def test_a_gradient_in_the_span_is_reconstructed_exactly(solver: str) -> None:
    rule = make_rule("fedsteer", core_set=CORE, ridge=0.0, solver=solver)
    state = with_history(rule)
    inside = np.random.default_rng(3).standard_normal((2, 3)) @ basis(state).T
    number = state.clients.number + 1
    state = rule.step(
        state, Round(number=number, clients=[0, 2], updates=inside, probabilities=[0.2, 0.5])
    ).state
    np.testing.assert_allclose(rule.estimate(state, [0, 2]), inside, rtol=0, atol=1e-9)
    # Known exactly, it no longer contributes to the variance.
    found = rule.step(
        state,
        Round(number=number + 1, clients=[2, 0], updates=inside[::-1], probabilities=[0.5, 0.2]),
    ).diagnostics
    assert found.relative_errors.max() < 1e-12 and found.variance < 1e-12
    np.testing.assert_allclose(found.cosines, 1.0, atol=1e-9)


@pytest.mark.parametrize("magnitude", ["fixed", "follow"])
def test_without_active_clients_the_model_moves_by_the_projections_only(magnitude: str) -> None:
    """Delta = Q u / n, and neither columns nor coordinates change."""
    rule = make_rule("fedsteer", core_set=CORE, magnitude=magnitude)
    state = with_history(rule)
    steered = basis(state) if magnitude == "fixed" else memory(state).columns.rows.T  # type: ignore[union-attr]
    coordinates = rule.coordinates(state, range(N))
    assert coordinates is not None
    total = SIZES @ coordinates
    number = state.clients.number + 1
    before = steered.copy()
    step = rule.step(
        state, Round(number=number, clients=[], updates=np.zeros((0, DIM)), probabilities=[])
    )
    np.testing.assert_allclose(step.delta, before @ total / SIZES.sum(), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(rule.coordinates(step.state, range(N)), coordinates)
    again = rule.step(
        step.state,
        Round(number=number + 1, clients=[], updates=np.zeros((0, DIM)), probabilities=[]),
    )
    np.testing.assert_array_equal(again.delta, step.delta)


def test_magnitude_follows_the_columns_or_stays() -> None:
    """Twice as long columns: "follow" doubles the estimate of an absent client, "fixed" does not"""
    for magnitude, factor in (("fixed", 1.0), ("follow", 2.0)):
        rule = make_rule("fedsteer", core_set=(0,), magnitude=magnitude)
        state = rule.init(DIM, SIZES)
        column, other = fresh_updates()[:2]
        for number, (client, update) in enumerate([(0, column), (1, other)], start=1):
            state = rule.step(
                state,
                Round(number=number, clients=[client], updates=update[None], probabilities=[0.5]),
            ).state
        before = rule.estimate(state, [1])
        assert before is not None
        state = rule.step(
            state, Round(number=3, clients=[0], updates=2 * column[None], probabilities=[0.5])
        ).state
        np.testing.assert_allclose(rule.estimate(state, [1]), factor * before, rtol=1e-12)
