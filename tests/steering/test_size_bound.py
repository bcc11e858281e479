"""Wrong numbers of data points: believed only within reason, and not forever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, make_rule
from fedsteer.steering.bounds import SizeBound
from fedsteer.steering.usual import LATEST

DIM, CLIENTS = 4, 10
SIZE = 100.0


def test_the_bound_by_hand() -> None:
    bound = SizeBound(times=10.0)
    sizes = np.zeros(4)

    def report(**numbers: float) -> list[float]:
        slots, reported = (
            np.array(["abcd".index(c) for c in numbers]),
            np.array([*numbers.values()]),
        )
        sizes[slots] = bound.limit(slots, reported, sizes[slots])
        bound.keep(slots, reported, sizes[slots])
        return sizes[slots].tolist()  # type: ignore[no-any-return]

    assert report(a=1.0, b=2.0, c=1e6) == [1.0, 2.0, 20.0]
    assert report(c=3.0, a=50.0) == [3.0, 1.0]  # of two reports the smaller one
    assert report(a=50.0, c=2.0, b=0.1) == [
        20.0,
        3.0,
        0.1,
    ]  # a: 50 confirmed, ten times what is usual
    assert report(b=2.0, a=1.0) == [2.0, 50.0]
    assert report(a=1.0) == [1.0]
    bound.latest = np.full(LATEST, 7.0)
    assert report(d=100.0) == [70.0]
    assert not len(bound.limit(np.zeros(0, int), np.zeros(0), np.zeros(0)))


def steps(reports: Any, rounds: int, **options: Any) -> list[Any]:
    """What rounds of an open federation yield, half of the clients there in each."""
    rule = make_rule("fedavg", preset="practical", step="fixed", norm_bound=None, **options)
    state, found = rule.init(DIM), []
    for number in range(1, rounds + 1):
        clients = [client for client in range(CLIENTS) if (client + number) % 2]
        sizes = [reports(number, client) for client in clients]
        updates = np.ones((len(clients), DIM))
        found.append(
            rule.step(state, Round(number=number, clients=clients, updates=updates, sizes=sizes))
        )
        state = found[-1].state
    return found


def lengths(found: list[Any]) -> Any:
    return np.array([step.delta[0] for step in found])


def test_one_wrong_report_costs_nothing() -> None:
    wrong_once = steps(lambda number, client: 1e6 if (number, client) == (21, 4) else SIZE, 60)
    honest = lengths(steps(lambda number, client: SIZE, 60))
    found = lengths(wrong_once)
    np.testing.assert_array_equal(found, honest)
    wrong = wrong_once[20].diagnostics
    assert wrong.claimed_sizes.max() == 1e6 and wrong.sizes.max() == SIZE


@pytest.mark.parametrize("name", ["fedsteer", "fedvarp", "fedstale", "mifa"])
def test_a_client_that_is_wrong_once_and_then_away_does_not_outweigh_the_others(name: str) -> None:
    """Its estimate counts in every round until it is back."""

    def last_delta(report: float) -> Any:
        rule = make_rule(name, preset="practical", step="fixed", norm_bound=None)
        state = rule.init(DIM)
        for number in range(1, 60):
            clients = [0, 1, 2, 3] if number in (5, 15, 30) else [0, 1, 2]
            sizes = [SIZE] * 3 + [report if number == 30 else SIZE] * (len(clients) - 3)
            updates = np.outer([1.0, 1.0, 1.0, -2.0][: len(clients)], np.ones(DIM))
            step = rule.step(
                state, Round(number=number, clients=clients, updates=updates, sizes=sizes)
            )
            state = step.state
        return step.delta

    np.testing.assert_array_equal(last_delta(1e6), last_delta(SIZE))


def test_without_the_bound_it_stands_in_for_all_others_once_and_is_forgotten() -> None:
    wrong = lambda number, client: 1e6 if (number, client) == (21, 4) else SIZE  # noqa: E731
    found = lengths(steps(wrong, 60, size_bound=None))
    honest = lengths(steps(lambda number, client: SIZE, 60))
    assert found[21] < 0.01 * honest[21]
    np.testing.assert_allclose(found[23:], honest[23:], rtol=1e-3)


def test_a_new_unit_does_not_shorten_steps_for_good() -> None:
    """From round 10 on all clients report a tenth."""
    found = lengths(steps(lambda number, client: SIZE if number < 10 else SIZE / 10, 60))
    honest = lengths(steps(lambda number, client: SIZE, 60))
    np.testing.assert_allclose(found[12:], honest[12:], rtol=1e-9)


def test_a_client_that_has_grown_is_believed_after_a_few_visits() -> None:
    grown = steps(lambda number, client: 5e4 if client == 4 and number > 20 else SIZE, 30)
    sizes = [step.diagnostics.sizes.max() for step in grown[20:30:2]]
    assert sizes == [SIZE, 1000.0, 10000.0, 50000.0, 50000.0]


def test_a_population_that_shrinks_is_noticed() -> None:
    """Half of the clients stop coming; with known p the mean follows within some 200 rounds."""
    rule = make_rule("fedavg")
    state, draw = rule.init(DIM), np.random.default_rng(0)
    for number in range(1, 1501):
        there = range(40) if number <= 500 else range(20)
        clients = [client for client in there if draw.random() < 0.3]
        updates, odds = np.ones((len(clients), DIM)), [0.3] * len(clients)
        state = rule.step(
            state, Round(number=number, clients=clients, updates=updates, probabilities=odds)
        ).state
    population = state.memory.clients.population  # type: ignore[attr-defined]
    assert population.mean == pytest.approx(20, rel=0.2)
