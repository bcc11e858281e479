"""Estimates count less while fewer clients come than the estimated probabilities predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, make_rule

DIM, CLIENTS = 6, 12
STEERED = ["fedsteer", "fedvarp", "fedstale", "mifa", "cluster_fedvarp"]


class NaiveTrust:
    """min(1, 2 C / P): clients that came and that were predicted, each round .9 of the next.

    A prediction is the share of all earlier rounds that clients came in, times the clients.
    """

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.came: list[int] = []

    def next(self) -> float:
        predicted = came = 0.0
        for past, count in enumerate(self.came):
            earlier = self.came[:past]
            predicted = 0.9 * predicted + (sum(earlier) / past if past else 0.0)
            came = 0.9 * came + count
        return min(1.0, 2 * came / predicted) if predicted else 1.0


def presence(number: int, draw: Any) -> list[int]:
    """Half of the clients; from round 101 on one of them, from 151 on all."""
    if number <= 100:
        return sorted(draw.choice(CLIENTS, CLIENTS // 2, replace=False).tolist())
    return [number % CLIENTS] if number <= 150 else list(range(CLIENTS))


@pytest.mark.parametrize("name", STEERED)
def test_a_doubted_estimate_counts_its_share_and_the_rest_is_the_weighted_sum(name: str) -> None:
    """Delta = t Delta(1) + (1 - t) sum_A a_i g_i, with the t of the rounds before."""
    plain: dict[str, Any] = {"probabilities": "shrunk"}
    if name in ("fedsteer", "cluster_fedvarp"):
        plain["select"] = "online"
    trusting, doubting = make_rule(name, **plain), make_rule(name, discount_estimates=True, **plain)
    one, other = (rule.init(DIM, [1.0] * CLIENTS) for rule in (trusting, doubting))
    naive, draw, lowest = NaiveTrust(CLIENTS), np.random.default_rng(3), 1.0
    for number in range(1, 161):
        clients = presence(number, draw)
        updates = draw.normal(size=(len(clients), DIM))
        trust = naive.next()
        naive.came.append(len(clients))
        full = trusting.step(one, Round(number=number, clients=clients, updates=updates))
        part = doubting.step(other, Round(number=number, clients=clients, updates=updates))
        assert part.diagnostics.trust == pytest.approx(trust, rel=1e-9)
        assert full.diagnostics.trust == 1.0
        alone = part.diagnostics.weights @ updates
        expected = trust * full.delta + (1 - trust) * alone
        np.testing.assert_allclose(part.delta, expected, atol=1e-9)
        one, other, lowest = full.state, part.state, min(lowest, trust)
    assert lowest < 0.5 and trust == 1.0


def test_many_rare_clients_lose_no_trust() -> None:
    """Ten of a thousand in each round, in an open population: for long, no client comes twice."""
    rule, draw = make_rule("fedsteer", preset="practical"), np.random.default_rng(0)
    state = rule.init(DIM)
    for number in range(1, 121):
        clients = np.flatnonzero(draw.random(1000) < 0.01).tolist()
        updates = draw.normal(size=(len(clients), DIM))
        step = rule.step(
            state,
            Round(number=number, clients=clients, updates=updates, sizes=[5.0] * len(clients)),
        )
        state = step.state
        assert step.diagnostics.trust == 1.0


@pytest.mark.parametrize("sizes", [[1.0, 2.0, 3.0], None])
def test_rounds_without_a_fresh_update_change_no_later_step(sizes: list[float] | None) -> None:
    rule, draw = make_rule("fedsteer", preset="practical"), np.random.default_rng(0)
    plain, interrupted = rule.init(DIM, sizes), rule.init(DIM, sizes)
    number = 0
    for played in range(1, 41):
        clients = [client for client in range(3) if (client + played) % 3 or played % 4]
        updates = np.ones((len(clients), DIM)) + 0.1 * draw.normal(size=(len(clients), DIM))
        own = {} if sizes else {"sizes": [2.0] * len(clients)}
        number += 1
        if played in (6, 7, 25):  # no client is there for a long time
            for idle in range(number, number + 50):
                empty = rule.step(
                    interrupted, Round(number=idle, clients=[], updates=np.zeros((0, DIM)))
                )
                interrupted = empty.state
                assert empty.action == "hold" and empty.diagnostics.delta_norm == 0.0
            number += 50
        one = rule.step(plain, Round(number=played, clients=clients, updates=updates, **own))
        other = rule.step(
            interrupted, Round(number=number, clients=clients, updates=updates, **own)
        )
        plain, interrupted = one.state, other.state
        np.testing.assert_array_equal(one.delta, other.delta)
        assert plain.clients.probabilities == interrupted.clients.probabilities


def test_a_refreshed_size_counts_in_earlier_rounds_even_if_the_model_is_held() -> None:
    """No other client came; held or not, a wrong size is forgotten once it is put right."""
    rule = make_rule("fedavg", nobody_fresh="hold")
    state = rule.init(DIM)

    def play(number: int, clients: list[int], sizes: list[float], **more: Any) -> Any:
        updates, odds = np.ones((len(clients), DIM)), [0.5] * len(clients)
        return rule.step(
            state,
            Round(
                number=number,
                clients=clients,
                updates=updates,
                probabilities=odds,
                sizes=sizes,
                **more,
            ),
        )

    for number in range(1, 21):
        state = play(number, [number % 2, 2 + number % 2], [10.0, 10.0]).state
    before = state.memory.clients.population.mean
    held = play(21, [0], [1000.0], refresh=[0])
    assert held.action == "hold"
    state = held.state
    assert state.memory.clients.population.mean == pytest.approx(before + 990)
    state = play(22, [0], [10.0], refresh=[0]).state
    assert state.memory.clients.population.mean == pytest.approx(before)


def test_rounds_in_which_mifa_waits_count_as_visits() -> None:
    rule = make_rule("mifa", preset="practical", start="wait")
    state = rule.init(DIM, [1.0] * 3)
    for number in range(1, 9):
        here = sorted({0, number % 2})
        step = rule.step(
            state, Round(number=number, clients=here, updates=np.ones((len(here), DIM)))
        )
        state = step.state
        assert step.action == "hold"
    probabilities = state.clients.probabilities
    assert probabilities is not None and probabilities[0] > probabilities[1] > probabilities[2]
