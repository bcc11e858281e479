"""Probability sources against the references that recount from round 1 at every question."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, RoundRefused, make_rule
from fedsteer.steering.checks import check_round
from fedsteer.steering.clients import enrol_population
from fedsteer.steering.probability import (
    Intervals,
    Known,
    Sampled,
    Shrunk,
    Visits,
    probability_source,
)
from tests.reference.participation import NaiveIntervals, NaiveShrunk, NaiveVisits

N = 12


def visits_of(seed: int, rounds: int, *, rare: bool) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    chances = draw.uniform(0.005, 0.05, N) if rare else draw.uniform(0.05, 0.9, N)
    return [np.flatnonzero(draw.random(N) < chances).tolist() for _ in range(rounds)]


def closed(source: Any) -> Any:
    source.join(np.arange(N), 0)
    return source


PAIRS = [
    (lambda: Visits(), lambda: NaiveVisits()),
    (lambda: Shrunk(), lambda: NaiveShrunk(N)),
    *((lambda c=cap: Intervals(cap=c), lambda c=cap: NaiveIntervals(c)) for cap in (1, 3, 50)),
]


@pytest.mark.parametrize("rare", [False, True])
@pytest.mark.parametrize("pair", PAIRS, ids=["visits", "shrunk", "cap 1", "cap 3", "cap 50"])
def test_closed_population_equals_the_reference(pair: Any, rare: bool) -> None:
    """Rare clients stay away for several caps; what happened meanwhile is worked out lazily."""
    source, naive = closed(pair[0]()), pair[1]()
    for number, active in enumerate(visits_of(1, 200, rare=rare), start=1):
        slots = np.array(active, np.int64)
        found = source.inverse(slots, number)
        np.testing.assert_allclose(found, naive.step(number, active), rtol=1e-12)
        source.observe(slots, number)


@pytest.mark.parametrize("absence", [4, 5, 9, 10, 11, 1_003])
def test_the_cap_ends_intervals_during_a_long_absence(absence: int) -> None:
    source, naive = closed(Intervals(cap=5)), NaiveIntervals(5)
    slot = np.array([3])
    for number in (2, 2 + absence, 3 + absence):
        assert source.inverse(slot, number)[0] == pytest.approx(naive.step(number, [3])[0])
        source.observe(slot, number)
    assert source.inverse(slot, 4 + absence)[0] <= 5


def test_asking_changes_nothing() -> None:
    source = closed(Intervals(cap=3))
    slot = np.array([0])
    asked = [source.inverse(slot, number)[0] for number in (20, 5, 20)]
    assert asked[0] == asked[2] and not source.count.values.any()


@pytest.mark.parametrize("kind", [Visits, Intervals])
def test_first_weight_of_a_newcomer_is_one(kind: type) -> None:
    source = kind()
    newcomer = np.array([40])
    assert source.inverse(newcomer, 700).tolist() == [1.0]


def test_a_late_newcomer_is_not_inflated_by_the_rounds_before_it_came() -> None:
    """Joins in round 700 and comes every second round: 1/p is 2, not hundreds."""
    for source in (Visits(), Intervals(cap=50)):
        slot = np.array([2])
        source.inverse(slot, 700)
        source.join(slot, 700)
        source.observe(slot, 700)
        for number in range(702, 760, 2):
            weight = source.inverse(slot, number)[0]
            assert 1.0 <= weight <= 2.0
            source.observe(slot, number)
        assert source.inverse(slot, 760)[0] == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("kind", ["visits", "intervals"])
def test_open_population_through_a_rule(kind: str) -> None:
    """The weight of a newcomer in round 300 is that of a first visit, whatever went before."""
    rule = make_rule("fedavg", probabilities=kind)
    state = rule.init(2)
    for number in range(1, 300):
        state = rule.step(
            state, Round(number=number, clients=["old"], updates=np.ones((1, 2)))
        ).state
    step = rule.step(state, Round(number=300, clients=["old", "late"], updates=np.ones((2, 2))))
    assert step.diagnostics.probabilities.tolist() == [1.0, 1.0]
    later = rule.step(step.state, Round(number=303, clients=["late"], updates=np.ones((1, 2))))
    assert later.diagnostics.probabilities[0] == (1.0 if kind == "intervals" else 0.5)
    third = rule.step(later.state, Round(number=306, clients=["late"], updates=np.ones((1, 2))))
    assert third.diagnostics.probabilities[0] == pytest.approx(
        1 / 3 if kind == "intervals" else 3 / 7
    )


@pytest.mark.parametrize("kind", [Visits, Intervals])
def test_clients_that_left_return_as_newcomers(kind: type) -> None:
    source = closed(kind())
    slot = np.array([1])
    for number in (10, 20, 30):
        source.observe(slot, number)
    assert source.inverse(slot, 40)[0] > 5
    source.forget(slot)
    assert source.inverse(slot, 41).tolist() == [1.0]
    source.join(slot, 41)
    source.observe(slot, 41)
    assert source.inverse(slot, 42)[0] == 1.0


@pytest.mark.parametrize("kind", [Visits, Intervals, Shrunk])
def test_restart_counts_from_there(kind: type) -> None:
    """After a warm-up of 100 rounds the estimates are those of a fresh start, 100 rounds later."""
    late, fresh = closed(kind()), closed(kind())
    late.inverse(np.arange(N), 60)
    late.restart(100)
    for number, active in enumerate(visits_of(2, 80, rare=False), start=1):
        slots = np.array(active, np.int64)
        np.testing.assert_array_equal(
            late.inverse(slots, 100 + number), fresh.inverse(slots, number)
        )
        late.observe(slots, 100 + number)
        fresh.observe(slots, number)


def test_restart_leaves_strangers_strangers() -> None:
    source = closed(Visits())
    source.forget(np.array([4]))
    source.restart(10)
    assert source.inverse(np.array([4, 5]), 15).tolist() == [1.0, 5.0]


def test_known_and_sampled() -> None:
    updates, passed = np.ones((2, 1)), np.array([0.5, 1.0])
    given = Round(number=3, clients=[0, 1], updates=updates, probabilities=passed)
    for source, inverse in ((Known(), [2.0, 1.0]), (Sampled(0.25), [4.0, 4.0])):
        clients = enrol_population(1, [1.0, 1.0], source, None)
        active, _ = clients.activate(
            check_round(given, 1), uses_probabilities=True, max_weight=None
        )
        assert active is not None and active.inverse_probabilities.tolist() == inverse
    with pytest.raises(RoundRefused, match="pass probabilities"):
        Known().inverse(np.array([0, 1]), 3)


def test_bias_of_the_cap_is_the_one_that_is_documented() -> None:
    """E[interval] with cap 50 is (1 - (1-p)^50) / p: .87 of 1/p at p = .04, .18 at .004."""
    for p, share in ((0.04, 0.87), (0.004, 0.18)):
        assert (1 - (1 - p) ** 50) == pytest.approx(share, abs=0.005)
        draw = np.random.default_rng(3)
        source = Intervals(cap=50)
        slots = np.arange(4000)
        source.join(slots, 0)
        for number in range(1, 600):
            source.observe(slots[draw.random(4000) < p], number)
        mean = source.inverse(slots, 600).mean() * p
        assert mean == pytest.approx(share, abs=0.03)


def test_source_by_name() -> None:
    assert isinstance(probability_source("known"), Known)
    assert isinstance(probability_source("visits"), Visits)
    assert probability_source("intervals", 7).cap == 7  # type: ignore[attr-defined]
    assert probability_source(0.3) == Sampled(0.3)


def test_shrunk_is_a_plain_average_before_anything_is_known() -> None:
    """All weights d_i / p_i of the first round add up to 1, however few of the many are there."""
    source = Shrunk()
    source.join(np.arange(1_000), 0)
    inverse = source.inverse(np.arange(4), 1)
    assert inverse.tolist() == [250.0] * 4
    assert (inverse / 1_000).sum() == 1.0


def test_shrunk_of_an_open_population() -> None:
    """Newcomers alone weigh 1; later, a newcomer weighs what members weigh on average."""
    source, first = Shrunk(), np.array([0, 1])
    source.join(first, 1)
    assert source.inverse(first, 1).tolist() == [1.0, 1.0]
    source.observe(first, 1)
    for number in range(2, 42):
        source.observe(first[:1] if number % 4 == 0 else first[:0], number)
    source.join(np.array([2]), 42)
    known, new = source.inverse(np.array([0, 2]), 42)
    share = (10 + 1) / (2 * 40 + 2)  # visits of the two members in rounds 2 to 42
    assert new == pytest.approx(1 / share)
    assert known == pytest.approx((10 + 40) / (10 * share + 10))


def test_shrunk_forgets_clients_that_left() -> None:
    """But for how often clients come: q counts their visits, and their rounds till then."""
    source = closed(Shrunk())
    for number, active in enumerate(visits_of(4, 30, rare=False), start=1):
        source.observe(np.array(active, np.int64), number)
    everybody, share = np.arange(N), source.all_visits / source.all_rounds
    stay = source.inverse(everybody, 31)[:-1] * 1.0
    source.forget(np.array([N - 1]))
    came = source.inverse(everybody[:-1], 31)  # of q one visit of many is missing
    np.testing.assert_allclose(came, stay, rtol=0.02)
    assert source.all_visits / source.all_rounds == share
    source.observe(np.array([], np.int64), 31)
    assert source.all_rounds == 30 * N + N - 1  # who left has no rounds any more
    source.join(np.array([N - 1]), 32)
    back = source.inverse(np.array([N - 1]), 32)[0]
    assert back == pytest.approx((30 * N + 2 * (N - 1)) / source.all_visits)  # as a newcomer


def test_shrunk_is_consistent() -> None:
    draw, chances = np.random.default_rng(5), np.array([0.02, 0.1, 0.5])
    source = Shrunk()
    source.join(np.arange(3), 0)
    for number in range(1, 20_001):
        source.observe(np.flatnonzero(draw.random(3) < chances), number)
    np.testing.assert_allclose(1 / source.inverse(np.arange(3), 20_001), chances, rtol=0.2)


def test_to_be_asked_says_nothing_of_p() -> None:
    """A refresh of all clients leaves the weights of those that came by themselves alone."""
    source = closed(Shrunk())
    for number, active in enumerate(visits_of(6, 30, rare=False), start=1):
        source.observe(np.array(active, np.int64), number)
    came = np.array([2, 5])
    everybody, fresh = np.arange(N), np.isin(np.arange(N), came)
    expected = source.inverse(came, 31)
    np.testing.assert_allclose(source.inverse(everybody, 31, fresh)[came], expected)


def test_shrunk_after_a_warm_up_counts_clients_that_joined_in_it() -> None:
    source, other = Shrunk(), Shrunk()
    source.join(np.arange(2), 0)
    source.join(np.arange(2, 10), 3)
    source.restart(4)
    other.join(np.arange(10), 0)
    other.restart(4)
    slots = np.array([1, 7])
    for number in (5, 6):
        found = source.inverse(slots, number)
        np.testing.assert_allclose(found, other.inverse(slots, number))
        source.observe(slots, number)
        other.observe(slots, number)


@pytest.mark.parametrize("choice", ["shrunk", "visits", "intervals"])
@pytest.mark.parametrize(("members", "odds"), [(20, 0.1), (100, 0.05), (400, 0.01)])
def test_newcomers_alone_do_not_freeze_an_open_population(
    choice: str, members: int, odds: float
) -> None:
    """Perhaps no client is back by round two, and what a newcomer weighs then stays in n."""
    draw = np.random.default_rng(members)
    for rounds in ([["a", "b"], ["c", "d"]], [["a"], [], ["b"], ["c"]], []):
        rule = make_rule("fedavg", probabilities=choice)
        state, moved = rule.init(1), []
        for number in range(1, 151):
            here = np.flatnonzero(draw.random(members) < odds).tolist()
            clients = rounds[number - 1] if number <= len(rounds) else here
            step = rule.step(
                state, Round(number=number, clients=clients, updates=np.ones((len(clients), 1)))
            )
            state = step.state
            moved.append(float(step.delta[0]))
        # The others have newcomers weigh one, of whom there are many for long.
        least = 0.5 if choice == "shrunk" else 0.1
        assert least < np.mean(moved[50:]) < 2 and max(moved) < 20


@pytest.mark.parametrize("closed", [True, False])
def test_a_newcomer_among_strangers_weighs_little(closed: bool) -> None:
    rule = make_rule("fedavg", probabilities="shrunk")
    state = rule.init(1, {f"old-{i}": 1.0 for i in range(4)} if closed else None)
    if closed:  # no known client has come
        step = rule.step(
            state, Round(number=1, clients=["new"], updates=np.ones((1, 1)), sizes=[1.0])
        )
        assert step.diagnostics.inverse_probabilities.tolist() == [4.0]
        state = rule.leave(step.state, ["old-0", "old-1", "old-2", "old-3", "new"])
        step = rule.step(
            state, Round(number=2, clients=["newer"], updates=np.ones((1, 1)), sizes=[1.0])
        )
        assert 1.0 <= step.diagnostics.inverse_probabilities[0] <= 10.0
    else:
        state = rule.step(state, Round(number=1, clients=["a", "b"], updates=np.ones((2, 1)))).state
        step = rule.step(state, Round(number=2, clients=["c", "d"], updates=np.ones((2, 1))))
        assert step.diagnostics.inverse_probabilities.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("members", "odds"), [(100, 0.1), (1_000, 0.01), (3_000, 0.003)])
def test_steps_have_the_right_length_if_clients_are_rare(members: int, odds: float) -> None:
    """All clients send 1. One that was away for long does not count as nearly always absent."""
    draw = np.random.default_rng(2)
    for sizes in (np.ones(members), None):
        rule = make_rule("fedavg", probabilities="shrunk")
        state, moved = rule.init(1, sizes), []
        for number in range(1, 201):
            here = np.flatnonzero(draw.random(members) < odds).tolist()
            step = rule.step(
                state, Round(number=number, clients=here, updates=np.ones((len(here), 1)))
            )
            state = step.state
            moved.append(float(step.delta[0]))
        for part in (moved[:10], moved[10:50], moved[50:]):
            assert 0.7 < np.mean(part) < 1.8


def test_steps_keep_their_length_while_no_client_comes_back() -> None:
    rule = make_rule("fedavg", probabilities="shrunk")
    state = rule.init(1)
    for number in range(1, 61):
        clients = [f"{number}-{i}" for i in range(10)]
        step = rule.step(state, Round(number=number, clients=clients, updates=np.ones((10, 1))))
        state = step.state
        assert 0.99 < step.delta[0] < 1.01


def test_who_leaves_does_not_take_along_how_often_clients_come() -> None:
    draw, rule = np.random.default_rng(0), make_rule("fedavg", probabilities="shrunk")
    state, seen = rule.init(1), list[int]()
    for number in range(1, 41):
        clients = draw.choice(400, 10, replace=False).tolist()
        state = rule.step(
            state, Round(number=number, clients=clients, updates=np.ones((10, 1)))
        ).state
        seen += clients
    state = rule.leave(state, [client for client in set(seen) if seen.count(client) > 1])
    for number in range(41, 61):
        clients = [f"{number}-{i}" for i in range(10)]
        step = rule.step(state, Round(number=number, clients=clients, updates=np.ones((10, 1))))
        state = step.state
        assert 0.5 < step.delta[0] < 1.5
