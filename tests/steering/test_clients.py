"""Who there is and what each client weighs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import ConfigurationError, RoundRefused
from fedsteer.steering.checks import check_round, explain
from fedsteer.steering.clients import Clients, enrol_population
from fedsteer.steering.probability import Intervals, Known
from fedsteer.steering.rounds import Active, Round
from tests.reference.population import Population
from tests.rules.enrolled import SIZES, events

DIM = 12


def people(sizes: Any = None, source: Any = None) -> Clients:
    return enrol_population(DIM, sizes, source or Known(), None)


def visit(
    clients: Clients,
    number: int,
    names: list[Any],
    *,
    uses_probabilities: bool = True,
    **given: Any,
) -> Active:
    given.setdefault("probabilities", [0.5] * len(names))
    cap = given.pop("max_weight", None)
    checked = check_round(
        Round(number=number, clients=names, updates=np.ones((len(names), DIM)), **given),
        clients.dim,
    )
    active, strangers = clients.activate(
        checked, uses_probabilities=uses_probabilities, max_weight=cap
    )
    assert active is not None and not (strangers | checked.faults)
    clients.welcome(active)
    clients.commit(active, training=True)
    return active


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_weights_equal_the_reference_while_clients_come_and_go(closed: bool, seed: int) -> None:
    clients = people(SIZES if closed else None)
    naive = Population(dict(enumerate(SIZES)) if closed else None)
    for event in events(seed, rounds=60, closed=closed, refreshes=True):
        if event.leaving:
            clients.leave(event.leaving)
            naive.leave(event.leaving)
            continue
        naive.begin(event.clients, event.probabilities, event.sizes, ignore=event.refresh)
        active = visit(
            clients,
            event.number,
            event.clients,
            probabilities=event.probabilities,
            sizes=event.sizes,
            refresh=event.refresh,
            max_weight=0.3,
        )
        assert active.total == pytest.approx(naive.total())
        expected = [naive.weight(client) for client in event.clients]
        np.testing.assert_allclose(active.shares, expected)
        weights = [
            0.0 if client in event.refresh else naive.active_weight(client, p, 0.3)
            for client, p in zip(event.clients, event.probabilities, strict=True)
        ]
        np.testing.assert_allclose(active.weights, weights)
        assert set(clients.members()) == set(naive.sizes)
        for client, size in naive.sizes.items():
            assert clients.sizes[clients.roster.find([client])][0] == size  # type: ignore[list-item]


def test_open_population_estimates_its_size_from_the_first_round_on() -> None:
    """E[sum_A n_i/p_i] = n: the first rounds weigh as much as the later ones."""
    draw = np.random.default_rng(0)
    chances, sizes = draw.uniform(0.05, 0.5, 200), draw.uniform(1, 9, 200)
    firsts, lasts = [], []
    for _ in range(40):
        clients = people()
        for number in range(1, 6):
            there = np.flatnonzero(draw.random(200) < chances)
            active = visit(
                clients,
                number,
                there.tolist(),
                probabilities=chances[there],
                sizes=sizes[there],
            )
            if number == 1:
                firsts.append(active.total)
        lasts.append(active.total)
    for found in (firsts, lasts):
        error = np.std(found) / np.sqrt(len(found))
        assert abs(np.mean(found) - sizes.sum()) < 4 * error
    assert np.std(lasts) < np.std(firsts)


def test_without_probabilities_an_open_population_is_the_clients_seen() -> None:
    clients = people()
    assert (
        visit(clients, 1, ["a", "b"], uses_probabilities=False, probabilities=None).shares.sum()
        == 1.0
    )
    active = visit(clients, 2, ["c"], uses_probabilities=False, probabilities=None, sizes=[2.0])
    assert active.total == 4.0 and active.shares.tolist() == [0.5]


def test_last_visit_and_old_sizes() -> None:
    clients = people([2.0, 3.0])
    first = visit(clients, 2, [1, 0])
    assert clients.attendance.last.tolist() == [2, 2]
    assert first.old_sizes.tolist() == [3.0, 2.0]
    later = visit(clients, 7, [0, "new"], sizes=[5.0, 1.0])
    assert clients.attendance.last[:3].tolist() == [7, 2, 7]
    assert later.old_sizes.tolist() == [2.0, 0.0]
    assert clients.total == 9.0 and clients.number == 7 and clients.rounds == 2


def test_warm_up_rounds_count_no_participation() -> None:
    clients = people([1.0, 1.0], Intervals(cap=50))
    checked = check_round(Round(number=1, clients=[0], updates=np.ones((1, DIM))), DIM)
    active, _ = clients.activate(checked, uses_probabilities=True, max_weight=None)
    assert active is not None
    clients.welcome(active)
    clients.commit(active, training=False)
    assert clients.rounds == 0 and clients.number == 1
    assert not clients.source.count.values.any()  # type: ignore[attr-defined]


def test_activate_writes_nothing() -> None:
    clients = people([1.0])
    checked = check_round(
        Round(
            number=1,
            clients=["x", 0],
            updates=np.ones((2, DIM)),
            probabilities=[0.5, 0.5],
            sizes=[4.0, 1.0],
        ),
        DIM,
    )
    clients.activate(checked, uses_probabilities=True, max_weight=None)
    assert clients.members() == [0] and clients.number == 0 and clients.total == 1.0


def test_sizes_by_name_in_any_order() -> None:
    clients = people({"b": 2.0, 5: 3.0, "a": 1.0, -1: 4.0})
    for name, size in (("b", 2.0), (5, 3.0), ("a", 1.0), (-1, 4.0)):
        assert clients.sizes[clients.roster.find([name])].tolist() == [size]
    assert clients.total == 10.0 and clients.closed


def test_strangers_are_named() -> None:
    clients = people([1.0, 1.0])
    checked = check_round(
        Round(number=1, clients=[0, "x", 7], updates=np.ones((3, DIM)), probabilities=[0.5] * 3),
        DIM,
    )
    active, faults = clients.activate(checked, uses_probabilities=True, max_weight=None)
    assert active is None and set(faults) == {1, 2}
    assert explain(faults, checked.round.clients).startswith(
        "client 'x' is unknown, and its number"
    )
    assert explain(faults, checked.round.clients).endswith("it cannot join (the same for 7)")
    many = dict.fromkeys(range(20), "is late") | {3: "is ill"}
    assert explain(many, range(20)) == (
        "client 0 is late (the same for 1, 2, 4, 5, 14 more); client 3 is ill"
    )
    assert people().activate(checked, uses_probabilities=True, max_weight=None)[1] == {}


def test_a_dense_client_that_left_is_a_stranger_until_it_brings_its_size() -> None:
    clients = people([1.0, 2.0])
    visit(clients, 1, [1])
    clients.leave([1])
    assert clients.attendance.last[[1]].tolist() == [0]
    checked = check_round(
        Round(number=2, clients=[1], updates=np.ones((1, DIM)), probabilities=[0.5]), DIM
    )
    assert list(clients.activate(checked, uses_probabilities=True, max_weight=None)[1]) == [0]
    back = visit(clients, 2, [1], sizes=[9.0])
    assert back.old_sizes[0] == 0
    assert clients.members() == [0, 1] and clients.total == 10.0


@pytest.mark.parametrize("number", [5, 4, 0, -1])
def test_round_numbers_rise(number: int) -> None:
    clients = people([1.0])
    visit(clients, 5, [0])
    late = check_round(Round(number=number, clients=[0], updates=np.ones((1, DIM))), DIM)
    with pytest.raises(RoundRefused, match=f"{number} does not follow round 5"):
        clients.activate(late, uses_probabilities=True, max_weight=None)


@pytest.mark.parametrize(
    "sizes",
    [[], [1.0, 0.0], [1.0, -2.0], [np.nan], [np.inf], [[1.0, 2.0]], {}, {"a": 0.0}],
    ids=str,
)
def test_impossible_sizes_are_refused(sizes: Any) -> None:
    with pytest.raises(ConfigurationError, match="sizes must be"):
        people(sizes)


def test_impossible_dimension_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="dim must be at least 1"):
        enrol_population(0, [1.0], Known(), None)


def test_clients_that_leave_an_open_population_take_only_their_points() -> None:
    """Most clients were never seen: twenty of a thousand leave 980, not half of what was seen."""
    draw, clients = np.random.default_rng(0), people(None)
    for number in range(1, 41):
        here = np.flatnonzero(draw.random(1000) < 0.02).tolist()
        visit(clients, number, here, probabilities=[0.02] * len(here))
    before = clients.population.mean
    clients.leave(clients.members()[:20])
    assert clients.population.mean == pytest.approx(before - 20)
    assert before == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize(("before", "after", "p"), [(20, 200, 0.1), (50, 1000, 0.03)])
def test_weights_follow_an_open_population_that_grows(before: int, after: int, p: float) -> None:
    """They add up to one on average, soon after. A mean over all rounds alone is behind for as long
    as it took: rounds 106 to 120 had added up to 1.4 and 3.0, the first of them to 5 and 14."""
    sums = np.zeros((20, 120))
    for seed, own in enumerate(sums):
        draw, clients = np.random.default_rng(seed), people(None)
        for number in range(1, 121):
            count = before if number <= 100 else after
            here = np.flatnonzero(draw.random(count) < p).tolist()
            active = visit(clients, number, here, probabilities=[p] * len(here))
            own[number - 1] = active.weights.sum()
    mean = sums.mean(axis=0)
    assert mean[:100].mean() == pytest.approx(1, abs=0.05)
    assert mean[100] < 4.5
    assert mean[105:].mean() == pytest.approx(1, abs=0.15)


def test_rare_newcomers_do_not_make_an_open_population_seem_to_grow() -> None:
    """Half of the clients come in one round of 500, and stand for all of these when they do."""
    chances = np.repeat([0.5, 0.002], 50)
    sums, rare = np.zeros((20, 300)), np.zeros((20, 300))
    for seed in range(20):
        draw, clients = np.random.default_rng(seed), people(None)
        for number in range(1, 301):
            here = np.flatnonzero(draw.random(100) < chances)
            active = visit(clients, number, here.tolist(), probabilities=chances[here])
            sums[seed, number - 1] = active.weights.sum()
            rare[seed, number - 1] = active.weights[here >= 50].sum()
    assert sums.mean() == pytest.approx(1, abs=0.06)
    assert rare.mean() == pytest.approx(0.5, abs=0.08)


def test_what_is_unseen_follows_estimates_and_stays_when_clients_leave() -> None:
    class Halving(Known):
        def drift(self, slots: Any, number: int, fresh: Any = None) -> float:
            return 0.5 if number == 9 else 1.0

    clients = people(None, Halving())
    for number in range(1, 8):
        visit(clients, number, ["a"], probabilities=[1.0])
    visit(clients, 8, ["a", *range(100)], probabilities=[1.0] + [0.1] * 100)
    assert clients.population.unseen == 150 and clients.population.doubt == pytest.approx(
        9000**0.5 / 4
    )
    slots = clients.roster.find([0, 1])
    assert (
        clients.total_without(slots, uses_probabilities=True) == 99 + 150 - clients.population.doubt
    )
    assert clients.total_without(slots, uses_probabilities=False) == 99
    visit(clients, 9, [])
    assert clients.population.unseen == 0.75 * 150 / 2
    assert clients.population.doubt == pytest.approx(0.75 * 9000**0.5 / 8)


def test_a_stranger_cannot_leave_before_anybody_came() -> None:
    with pytest.raises(RoundRefused, match="'x' is not a member"):
        people(None).leave(["x"])
