"""A column is a client's update, so a poisoned one is in every estimate: it must not spread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, ServerOptimiser, make_rule

CLIENTS, DIM, RATE, STEPS, AFTER = 30, 40, 0.05, 5, 50


def models(since: int, times: float, seed: int, **options: Any) -> tuple[np.ndarray, int]:
    """The models of all rounds on quadratics, and when a column owner sends `times` its update.

    It does so once, in the first round from `since` on in which an owner is there.
    """
    draw = np.random.default_rng(seed)
    goals = draw.normal(size=(CLIENTS, DIM)) + 2
    rule = make_rule("fedsteer", preset="practical", local_rate=RATE, **options)
    state, model, optimiser = rule.init(DIM, np.ones(CLIENTS)), np.zeros(DIM), ServerOptimiser()
    moments, found, struck = optimiser.init(), [model], 0
    while not struck or len(found) <= struck + AFTER:
        number = len(found)
        here = np.flatnonzero(draw.random(CLIENTS) < 0.3).tolist()
        wrong = 0.1 * draw.normal(size=(CLIENTS, DIM))
        asked, owners = rule.plan(state, number, here), state.memory.own.columns.owners  # type: ignore[attr-defined]
        updates = []
        for client in here:
            own: Any = asked.each.get(client, {})
            weights = model
            for _ in range(STEPS):
                gradient = weights - goals[client] + wrong[client]
                weights = weights - RATE * (gradient + own.get("correction", 0.0))
            factor = 1.0
            if number >= since and not struck and client in owners:
                struck, factor = number, times
            updates.append(factor * (model - weights))
        sent = Round(number=number, clients=here, updates=updates, steps=[STEPS] * len(here))
        step = rule.step(state, sent)
        state = step.state
        if step.action == "move":
            model, moments = optimiser.step(moments, model, step.delta)
        found.append(model)
    return np.array(found), struck


def spread(since: int, times: float, seed: int, **options: Any) -> float:
    """How far the attack takes the model from where it would be, in usual steps."""
    right, struck = models(since, 1.0, seed, **options)
    wrong, same = models(since, times, seed, **options)
    assert struck == same
    steps = np.linalg.norm(np.diff(right, axis=0), axis=1)
    usual = float(np.median(steps[max(struck - 11, 0) : max(struck - 1, 5)]))
    return float(np.linalg.norm(wrong - right, axis=1)[struck:].max()) / usual


@pytest.mark.parametrize("since", [2, 5, 20, 60, 100])
@pytest.mark.parametrize("times", [-1000.0, 1e6])
def test_one_update_of_an_owner_moves_the_model_by_few_usual_steps(
    since: int, times: float
) -> None:
    assert max(spread(since, times, seed) for seed in range(4)) < 4


def test_without_the_bound_on_updates_it_would_move_it_far() -> None:
    assert spread(60, -1000.0, 0, update_bound=None) > 10
