"""Local steps that a client claims: no claim of one client spoils what is sent, or the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, ServerOptimiser, make_rule

CLIENTS, DIM, RATE, STEPS, ROUNDS = 10, 30, 0.05, 5, 100
GOALS = np.random.default_rng(0).normal(size=(CLIENTS, DIM)) + 2


def distances(name: str, claim: float, rounds: range) -> np.ndarray:
    """From the optimum of quadratics, if client 0 claims so many steps in these rounds."""
    rule, draw = make_rule(name, preset="practical", local_rate=RATE), np.random.default_rng(1)
    state, model, optimiser = rule.init(DIM, np.ones(CLIENTS)), np.zeros(DIM), ServerOptimiser()
    moments, found = optimiser.init(), []
    for number in range(1, ROUNDS + 1):
        here = np.flatnonzero(draw.random(CLIENTS) < 0.5).tolist()
        asked = rule.plan(state, number, here)
        updates = []
        for client in here:
            own: Any = asked.each.get(client, {})
            added = own.get("correction", 0.0)
            if "control" in asked.shared:
                added = asked.shared["control"] - own.get("control", 0.0)
            assert np.isfinite(added).all() and np.abs(added).max() < 100
            weights = model
            for _ in range(STEPS):
                weights = weights - RATE * (weights - GOALS[client] + added)
            updates.append(model - weights)
        lying = number in rounds
        claims = [claim if lying and client == 0 else STEPS for client in here]
        sent = Round(number=number, clients=here, updates=updates, steps=claims)
        step = rule.step(state, sent)
        state = step.state
        if step.action == "move":
            model, moments = optimiser.step(moments, model, step.delta)
        found.append(float(np.linalg.norm(model - GOALS.mean(axis=0))))
    return np.array(found)


@pytest.mark.parametrize("name", ["fedsteer", "scaffold"])
@pytest.mark.parametrize("claim", [5e-324, 0.5, 1e3, 1e9, 1e15])
@pytest.mark.parametrize("rounds", [range(41, 44), range(1, ROUNDS)])
def test_a_wrong_number_of_steps_moves_nothing_far(name: str, claim: float, rounds: range) -> None:
    found = distances(name, claim, rounds)
    assert found[0] > 5
    assert found[40:].max() < 1.1  # about as far as one client of ten can pull


def test_clients_with_ten_times_the_steps_take_part_in_the_correction() -> None:
    rule = make_rule("fedsteer", preset="practical", local_rate=RATE)
    state, updates = rule.init(2, np.ones(4)), np.eye(4, 2)
    for steps, corrected in ((50, {0, 1, 2, 3}), (51, {1, 2, 3})):
        claims = [steps, 5, 5, 5]
        clients, number = range(4), state.clients.number + 1
        sent = Round(number=number, clients=clients, updates=updates, steps=claims)
        state = rule.step(state, sent).state
        assert set(rule.plan(state, number + 1, clients).each) == corrected
