"""What is expected of clients that never came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, make_rule
from tests.rules import test_theory as theory
from tests.rules.fedsteer.test_selection import take

DIM, N = 12, 10


def alike(draw: Any, spread: float) -> Any:
    """Updates of clients that have a direction in common."""
    return np.ones(DIM) + spread * draw.standard_normal((N, DIM))


@pytest.mark.parametrize(("spread", "low", "high"), [(0.1, 0.8, 1.0), (30.0, 0.0, 0.3)])
def test_what_others_tell_of_a_newcomer_is_learnt(spread: float, low: float, high: float) -> None:
    rule = make_rule("fedsteer", select="online", core_size=4, ridge=0.01, newcomers="learnt")
    draw = np.random.default_rng(0)
    state, updates = rule.init(DIM, [1.0] * N), alike(draw, spread)
    for number in range(1, N):
        came = [number - 1]
        state = take(rule, state, number, came, updates[came])
    share = state.memory.own.newcomers.share  # type: ignore[attr-defined]
    assert low <= share <= high
    mean = np.mean(rule.estimate(state, range(N - 1)), axis=0)
    np.testing.assert_allclose(rule.estimate(state, [N - 1])[0], share * mean, atol=1e-12)


def test_first_steps_are_as_long_as_if_everybody_had_come() -> None:
    """Three of ten clients came, all are alike, and the next round has nobody."""
    options: dict[str, Any] = {"select": "online", "core_size": 4, "ridge": 1e-9}
    lengths = {}
    for newcomers in ("zero", "learnt"):
        rule = make_rule("fedsteer", newcomers=newcomers, **options)
        state = rule.init(DIM, [1.0] * N)
        for number, client in enumerate([0, 1, 0, 1, 2], start=1):
            state = take(rule, state, number, [client], np.ones((1, DIM)))
        empty = Round(number=6, clients=[], updates=np.zeros((0, DIM)), probabilities=[])
        lengths[newcomers] = np.linalg.norm(rule.step(state, empty).delta) / np.sqrt(DIM)
    assert lengths["zero"] == pytest.approx(0.3)
    assert lengths["learnt"] == pytest.approx(1.0)


def test_the_aggregate_is_unbiased_for_newcomers_too() -> None:
    """Proposition 1 by enumeration, in a round in which two clients could come for the first time,
    after others told much of them."""
    rule = make_rule("fedsteer", select="online", core_size=3, newcomers="learnt")
    draw, state = np.random.default_rng(2), rule.init(theory.DIM, theory.SIZES)
    for number in range(1, 9):
        clients = [(number - 1) % (theory.N - 2)]
        updates = 3.0 + draw.standard_normal((1, theory.DIM))
        state = take(rule, state, number, clients, updates)
    assert state.memory.own.newcomers.share > 0.5  # type: ignore[attr-defined]
    assert np.abs(rule.estimate(state, [theory.N - 1])).min() > 0.5
    updates = theory.fresh_updates()
    expected = theory.expected_delta(rule, state, updates)
    np.testing.assert_allclose(expected, theory.SHARES @ updates, rtol=0, atol=1e-12)


def test_a_client_that_left_is_a_newcomer_again() -> None:
    rule = make_rule("fedsteer", select="online", core_size=4, newcomers="learnt")
    state = rule.init(DIM)
    updates = alike(np.random.default_rng(1), 0.1)
    for number in range(1, 7):
        state = take(rule, state, number, [number], updates[[number]])
    assert state.memory.own.newcomers.points == 6.0  # type: ignore[attr-defined]
    state = rule.leave(state, [2, 3])
    assert state.memory.own.newcomers.points == 4.0  # type: ignore[attr-defined]
    state = take(rule, state, 7, [2], updates[[2]])
    assert state.memory.own.newcomers.points == 5.0  # type: ignore[attr-defined]
