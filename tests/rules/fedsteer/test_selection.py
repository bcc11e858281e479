"""Core sets without a warm-up: first seen, and re-selected among the clients in hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, Rule, State, make_rule
from fedsteer.rules.fedsteer import search as searching
from fedsteer.rules.fedsteer.columns import Columns
from fedsteer.steering.kernels import Pass, Sweep
from fedsteer.steering.kernels import numpy as in_numpy
from tests.reference.coreset import naive_search

DIM, N = 10, 12
SIZES = np.arange(1.0, N + 1)


def columns(state: State) -> Columns:
    found = state.memory.own.columns  # type: ignore[attr-defined]
    assert isinstance(found, Columns)
    return found


def take(rule: Rule, state: State, number: int, clients: list[Any], updates: Any) -> State:
    count = len(clients)
    return rule.step(
        state,
        Round(
            number=number, clients=clients, updates=np.asarray(updates), probabilities=[0.5] * count
        ),
    ).state


def test_first_seen_first_in() -> None:
    rule = make_rule("fedsteer", select="online", core_size=3)
    draw = np.random.default_rng(0)
    state = take(rule, rule.init(DIM), 1, ["b"], draw.standard_normal((1, DIM)))
    assert columns(state).owners == ["b", None, None]
    state = take(rule, state, 2, ["a"], np.zeros((1, DIM)))  # who sent nothing brings no column
    assert columns(state).owners == ["b", None, None]
    updates = draw.standard_normal((4, DIM))
    state = take(rule, state, 3, ["z", "y", "b", "c"], updates)
    assert columns(state).owners == ["b", "c", "y"]
    np.testing.assert_array_equal(columns(state).rows, updates[[2, 3, 1]])
    state = take(rule, state, 4, [3, "q"], draw.standard_normal((2, DIM)))
    assert columns(state).owners == ["b", "c", "y"]
    state = rule.leave(state, ["c"])
    assert columns(state).owners == ["b", None, "y"]
    state = take(rule, state, 5, ["q"], draw.standard_normal((1, DIM)))
    assert columns(state).owners == ["b", "q", "y"]


def test_columns_of_clients_long_away_go_to_the_longest_updates() -> None:
    rule = make_rule("fedsteer", select="online", core_size=2, renew_after=3)
    draw = np.random.default_rng(0)
    state = take(rule, rule.init(DIM), 1, ["a", "b"], draw.standard_normal((2, DIM)))
    for number in (2, 3, 4):
        state = take(rule, state, number, ["a"], draw.standard_normal((1, DIM)))
    assert columns(state).owners == ["a", "b"]  # b was away for three rounds: not yet
    updates = np.array([[1.0], [3.0], [2.0]]) * draw.standard_normal((1, DIM))
    before = rule.estimate(state, ["a"])
    state = take(rule, state, 5, ["x", "y", "z"], updates)
    assert columns(state).owners == ["a", "y"]
    np.testing.assert_array_equal(columns(state).rows[1], updates[1])
    # What was known along the column that stays is not lost.
    kept, column = rule.estimate(state, ["a"])[0], columns(state).rows[0]
    assert abs(kept @ column - before[0] @ column) < 0.5 * abs(before[0] @ column)


@pytest.mark.parametrize("magnitude", ["fixed", "follow"])
def test_a_column_taken_over_is_the_update_without_its_correction(magnitude: str) -> None:
    """In the basis of the round in which the correction was sent, not of the one after it."""
    options = {"drift": 0.5, "local_rate": 0.1, "magnitude": magnitude, "probabilities": 1.0}
    rule = make_rule("fedsteer", select="online", core_size=2, renew_after=2, **options)
    draw, state = np.random.default_rng(0), rule.init(DIM)

    def round_of(number: int, clients: list[str], updates: np.ndarray) -> Round:
        steps = [4] * len(clients)
        return Round(number=number, clients=clients, updates=updates, steps=steps)

    for number, clients in enumerate((["a", "b"], ["a", "x"], ["a", "x"]), start=1):
        updates = 3.0**number * draw.standard_normal((2, DIM))
        state = rule.step(state, round_of(number, clients, updates)).state
    update = draw.standard_normal((1, DIM))
    correction = rule.plan(state, 4, ["x"]).each["x"]["correction"]
    state = rule.step(state, round_of(4, ["x"], update)).state
    assert columns(state).owners == ["a", "x"] and np.linalg.norm(correction) > 0.1
    np.testing.assert_allclose(columns(state).rows[1], update[0] - 0.1 * 4 * correction)


def test_an_owner_who_is_back_keeps_the_column() -> None:
    rule = make_rule("fedsteer", select="online", core_size=1, renew_after=1)
    draw = np.random.default_rng(0)
    state = take(rule, rule.init(DIM), 1, ["a"], draw.standard_normal((1, DIM)))
    state = take(rule, state, 9, ["a", "b"], draw.standard_normal((2, DIM)))
    assert columns(state).owners == ["a"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("every", [1, 3])
def test_reselection_is_the_naive_search_over_the_last_updates(seed: int, every: int) -> None:
    """Sketches as wide as the model have exact inner products, so both must find the same."""
    rule = make_rule(
        "fedsteer", core_set=(2, 7, 5), reselect_every=every, sketch_width=DIM, swaps=2
    )
    state = rule.init(DIM, SIZES)
    draw = np.random.default_rng(seed)
    last = np.zeros((N, DIM))
    owners: list[Any] = [2, 7, 5]
    swapped = 0
    for number in range(1, 25):
        active = np.flatnonzero(draw.random(N) < 0.4).tolist()
        updates = draw.standard_normal((len(active), DIM)) * draw.uniform(0.2, 3, (len(active), 1))
        last[active] = updates
        state = take(rule, state, number, active, updates.reshape(-1, DIM))
        if number % every == 0 and active:
            found = naive_search(last, SIZES / SIZES.sum(), owners, 0.5, 2, sorted(active))
            swapped += found != owners
            owners = found
        assert columns(state).owners == owners
        rows = columns(state).rows
        if rows is not None:
            np.testing.assert_allclose(columns(state).gram, rows @ rows.T, atol=1e-10)
    assert swapped > 3


@pytest.mark.parametrize("closed", [True, False])
def test_core_clients_never_seen_are_not_mistaken_for_anybody(closed: bool) -> None:
    """An open population has no slot for them yet; newcomers take over their columns."""
    rule = make_rule("fedsteer", core_set=("x", "y"), reselect_every=1, sketch_width=DIM)
    sizes: Any = {name: 1.0 for name in ("a", "b", "c", "x")} if closed else None
    state = rule.init(DIM, sizes)
    draw = np.random.default_rng(1)
    last = {}
    for number, clients in enumerate([["a"], ["b", "a"], ["c"], ["a", "b", "c"]], start=1):
        updates = draw.standard_normal((len(clients), DIM))
        state = take(rule, state, number, clients, updates)
        last |= dict(zip(clients, updates, strict=True))
        own = columns(state)
        for row, owner in zip(own.rows, own.owners, strict=True):  # type: ignore[arg-type]
            seen = last.get(owner, np.zeros(DIM))  # type: ignore[arg-type]
            assert not row.any() or np.array_equal(row, seen)
        assert len(set(own.owners)) == 2
    assert set(columns(state).owners) <= {"a", "b", "c"}


def test_a_newcomer_in_the_core_set_answers_in_a_reselecting_round() -> None:
    rule = make_rule("fedsteer", core_set=("m", "k"), reselect_every=1, sketch_width=DIM, swaps=0)
    state = rule.init(DIM)
    updates = np.random.default_rng(2).standard_normal((3, DIM))
    state = take(rule, state, 1, ["z", "m", "a"], updates)
    assert columns(state).owners == ["m", "k"]
    np.testing.assert_array_equal(columns(state).rows, [updates[1], np.zeros(DIM)])


def test_vacant_columns_are_filled_in_the_same_order_for_any_order_of_clients() -> None:
    """Also in a round that re-selects."""
    updates = np.random.default_rng(3).standard_normal((4, DIM))
    names = ["d", "b", "a", "c"]
    found = []
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        rule = make_rule("fedsteer", select="online", core_size=2, reselect_every=1)
        state = take(rule, rule.init(DIM), 1, [names[i] for i in order], updates[order])
        found.append(columns(state).owners)
    assert found == [["a", "b"]] * 3


def test_reselection_looks_at_a_sample_of_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MOST_TARGETS", 4)
    seen = []
    kept = searching.Snapshot.of
    monkeypatch.setattr(
        searching.Snapshot, "of", lambda gram, *rest: seen.append(len(gram)) or kept(gram, *rest)
    )
    rule = make_rule("fedsteer", core_set=(0, 1), reselect_every=1, sketch_width=DIM)
    state = rule.init(DIM, SIZES)
    draw = np.random.default_rng(4)
    state = take(rule, state, 1, list(range(N)), draw.standard_normal((N, DIM)))
    take(rule, state, 2, [5, 6], draw.standard_normal((2, DIM)))
    assert seen[1] <= 4 + 2 + 2


def test_vacant_columns_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In multiples of five, and all of them once the last one has an owner."""
    read, plain = [], in_numpy.one_pass

    def looked_at(sweep: Sweep) -> Pass:
        read.append(0 if sweep.basis is None else len(sweep.basis))
        return plain(sweep)

    monkeypatch.setattr(in_numpy, "one_pass", looked_at)
    rule = make_rule("fedsteer", select="online", core_size=12)
    draw, state = np.random.default_rng(0), rule.init(DIM)
    for number in range(1, 8):
        clients = [f"{number}-{i}" for i in range(2)]
        state = take(rule, state, number, clients, draw.standard_normal((2, DIM)))
    assert read == [0, 5, 5, 10, 10, 10, 12]
