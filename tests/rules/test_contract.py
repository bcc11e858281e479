"""What every rule keeps to, whatever it computes: one table, the same invariants for all."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, RoundRefused, State, StateError, make_rule
from tests.rules.enrolled import (
    DIM,
    ENROLLED,
    FLOAT64,
    LIBRARIES,
    MEMBERS,
    SIZES,
    Enrolled,
    Played,
    as_round,
    events,
    every_rule,
    host,
    missing_rules,
    packed,
    start,
)
from tests.rules.stories import Event

POPULATIONS = [
    pytest.param(entry, closed, id=f"{label}-{'closed' if closed else 'open'}")
    for label, entry in ENROLLED.items()
    for closed in ([True, False] if entry.open else [True])
]
every_population = pytest.mark.parametrize(("entry", "closed"), POPULATIONS)


def everybody(number: int, updates: Any, probability: float = 1.0) -> Event:
    count = len(updates)
    return Event(
        number=number,
        clients=list(range(count)),
        updates=updates,
        probabilities=[probability] * count,
        sizes=None,
        steps=[2] * count,
        refresh=[],
        leaving=[],
    )


def nobody(number: int) -> Event:
    return everybody(number, np.zeros((0, DIM)))


def test_every_rule_is_enrolled() -> None:
    assert not missing_rules(), "add a line to AS_PUBLISHED in tests/rules/enrolled.py"


@every_rule
@pytest.mark.parametrize("library", LIBRARIES)
def test_type_and_shape_stay(entry: Enrolled, library: str) -> None:
    convert = LIBRARIES[library]
    played = start(entry.rule()).play(events(5, rounds=14), convert)
    wide = "float64" if library.endswith("float64") else "float32"
    expected = getattr(torch if library.startswith("torch") else np, wide)
    for delta in played.deltas:
        assert isinstance(delta, torch.Tensor if library.startswith("torch") else np.ndarray)
        assert delta.dtype == expected
        assert tuple(delta.shape) == (DIM,)
        assert np.isfinite(host(delta)).all()
    # Round 1 of this story has clients, so the dtype is known in later rounds without any.
    assert len(played.diagnostics[0].clients) and not all(d.clients for d in played.diagnostics)


@every_population
def test_numpy_and_torch_agree(entry: Enrolled, closed: bool) -> None:
    if entry.options.get("cache") == "bfloat16":
        pytest.skip("NumPy has no bfloat16 and keeps such a cache in float32")
    happenings = events(2, closed=closed)
    ours = start(entry.rule(), closed=closed).play(happenings, FLOAT64)
    theirs = start(entry.rule(), closed=closed).play(happenings, LIBRARIES["torch-float64"])
    for one, other in zip(ours.deltas, theirs.deltas, strict=True):
        np.testing.assert_allclose(one, host(other), rtol=0, atol=1e-6)
    assert ours.actions == theirs.actions


@every_population
def test_same_story_same_bits(entry: Enrolled, closed: bool) -> None:
    happenings = events(3, closed=closed)
    one = start(entry.rule(), closed=closed).play(happenings)
    other = start(entry.rule(), closed=closed).play(happenings)
    assert [d.tobytes() for d in one.deltas] == [d.tobytes() for d in other.deltas]
    assert packed(one.state) == packed(other.state)


def shuffled(event: Event, draw: np.random.Generator) -> Event:
    """The same round with its clients listed in another order."""
    order = draw.permutation(len(event.clients)).tolist()
    if event.leaving:
        return event
    return Event(
        number=event.number,
        clients=[event.clients[i] for i in order],
        updates=event.updates[order],
        probabilities=[event.probabilities[i] for i in order],
        sizes=None if event.sizes is None else [event.sizes[i] for i in order],
        steps=[event.steps[i] for i in order],
        refresh=event.refresh,
    )


def members(played: Played) -> list[Any]:
    return played.state.clients.members


def beliefs(played: Played) -> Any:
    believed = played.rule.estimate(played.state, sorted(members(played), key=str))
    return np.zeros(0) if believed is None else host(believed)


@every_population
def test_order_of_clients_does_not_matter(entry: Enrolled, closed: bool) -> None:
    happenings = events(4, closed=closed)
    draw = np.random.default_rng(0)
    one = start(entry.rule(), closed=closed).play(happenings)
    other = start(entry.rule(), closed=closed).play(shuffled(event, draw) for event in happenings)
    for first, second in zip(one.deltas, other.deltas, strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=1e-6)
    np.testing.assert_allclose(beliefs(one), beliefs(other), rtol=0, atol=1e-6)
    assert [d.core_set for d in one.diagnostics] == [d.core_set for d in other.diagnostics]
    assert one.actions == other.actions


@every_population
@pytest.mark.parametrize("empty", ["array", "list"])
def test_empty_rounds_from_the_start(entry: Enrolled, closed: bool, empty: str) -> None:
    rule = entry.rule()
    state = rule.init(DIM, SIZES if closed else None)
    for number in (1, 2, 3):
        updates: Any = [] if empty == "list" else np.zeros((0, DIM))
        step = rule.step(
            state,
            Round(
                number=number,
                clients=[],
                updates=updates,
                probabilities=[],
                steps=[],
                model=np.zeros(DIM),
            ),
        )
        state = step.state
        assert step.delta.shape == (DIM,) and not step.delta.any()
        assert step.diagnostics.clients == () and not step.diagnostics.variance > 0
    played = Played(rule, state).play([_later(event, 3) for event in events(5, closed=closed)])
    assert all(np.isfinite(delta).all() for delta in played.deltas)


def _later(event: Event, rounds: int) -> Event:
    event.number += rounds
    return event


@every_rule
@pytest.mark.parametrize("empty", ["array", "list"])
def test_a_later_empty_round_moves_by_the_estimates(entry: Enrolled, empty: str) -> None:
    """Delta = sum_i d_i estimate_i over the members, joined and left ones too; 0 if held."""
    played = start(entry.rule()).play(events(6, rounds=40))
    clients = played.state.memory.clients  # type: ignore[attr-defined]
    present = sorted(clients.members(), key=str)
    assert set(present) != set(range(MEMBERS))
    sizes = clients.sizes[clients.roster.find(present)]
    believed = beliefs(played)
    number = clients.number + 1
    updates: Any = [] if empty == "list" else np.zeros((0, DIM))
    step = played.rule.step(
        played.state,
        Round(
            number=number,
            clients=[],
            updates=updates,
            probabilities=[],
            steps=[],
            model=played.model,
        ),
    )
    if entry.options.get("start") == "seen":  # the unheard have no weight
        sizes = np.where(clients.attendance.last[clients.roster.find(present)] > 0, sizes, 0.0)
    expected = sizes / sizes.sum() @ believed if believed.size else np.zeros(DIM)
    expected *= step.diagnostics.bound_factor if step.action == "move" else 0.0
    np.testing.assert_allclose(step.delta, expected, rtol=0, atol=1e-6)


@every_rule
def test_full_participation_is_the_plain_mean(entry: Enrolled) -> None:
    """With equal sizes and p = 1 rules give the mean of the updates, round after round."""
    if not entry.mean:
        pytest.skip("no mean")
    rule = entry.rule()
    draw = np.random.default_rng(7)
    state = rule.init(DIM, [2.0] * MEMBERS)
    model = np.zeros(DIM)
    for number in range(1, 6):
        updates = draw.standard_normal((MEMBERS, DIM))
        step = rule.step(state, as_round(everybody(number, updates), FLOAT64, model))
        state = step.state
        certain = bool((step.diagnostics.probabilities == 1.0).all())
        if certain and "max_weight" not in entry.options:
            found = step.diagnostics
            mean = updates.mean(axis=0) * found.bound_factor * found.step_factor
            np.testing.assert_allclose(step.delta, mean, rtol=0, atol=1e-10)
        else:
            assert entry.options.get("probabilities") == 0.4 or "max_weight" in entry.options
        if step.action == "move":
            model = model - step.delta


@every_rule
def test_one_client_only(entry: Enrolled) -> None:
    rule = entry.rule()
    draw = np.random.default_rng(8)
    played = Played(rule, rule.init(DIM, [3.0]))
    for number in range(1, 9):
        count = int(number % 3 != 0)
        played.play([everybody(number, draw.standard_normal((count, DIM)), 0.6)])
        assert np.isfinite(played.deltas[-1]).all()
    assert any(delta.any() for delta in played.deltas)


@pytest.mark.parametrize("magnitude", ["fixed", "follow"])
@pytest.mark.parametrize("select", ["online", "search", "random", "frequent"])
def test_more_columns_than_clients(select: str, magnitude: str) -> None:
    rule = make_rule(
        "fedsteer",
        select=select,
        core_size=20,
        cycles=1,
        reselect_every=2,
        magnitude=magnitude,
        frequencies={client: 0.5 for client in range(40)},
    )
    played = start(rule).play(events(9))
    assert all(np.isfinite(delta).all() for delta in played.deltas)
    assert 0 < played.diagnostics[-1].columns <= MEMBERS + 5


@every_rule
def test_zero_updates(entry: Enrolled) -> None:
    """Zeros in, zeros out; and nothing is spoilt for the updates that follow."""
    played = start(entry.rule())
    draw = np.random.default_rng(10)
    played.play(everybody(number, np.zeros((MEMBERS, DIM)), 0.5) for number in (1, 2, 3))
    assert not any(delta.any() for delta in played.deltas)
    played.play([everybody(4, draw.standard_normal((MEMBERS, DIM)), 0.5)])
    played.play([everybody(5, draw.standard_normal((MEMBERS, DIM)), 0.5)])
    assert all(np.isfinite(delta).all() for delta in played.deltas)
    assert played.deltas[-1].any()


@pytest.mark.parametrize("ridge", [0.0, 1e-20, 1e-6])
@pytest.mark.parametrize("library", ["numpy-float32", "numpy-float64", "torch-float32"])
@pytest.mark.parametrize(
    "label", [label for label, entry in ENROLLED.items() if entry.name == "fedsteer"]
)
def test_collinear_columns(label: str, library: str, ridge: float) -> None:
    """All updates on one line: the Gram matrix has rank one, the estimates stay in proportion."""
    if ENROLLED[label].options.get("solver") == "gradient" and 0 < ridge < 1e-6:
        pytest.skip("gradient descent is not meant for tiny ridges")
    played = start(ENROLLED[label].rule(ridge=ridge))
    draw = np.random.default_rng(11)
    line = draw.standard_normal(DIM)
    longest = 0.0
    for number in range(1, 9):
        updates = np.outer(draw.uniform(0.5, 2.0, MEMBERS), line)
        played.play([everybody(number, updates, 0.9)], LIBRARIES[library])
        delta = host(played.deltas[-1])
        assert np.isfinite(delta).all()
        longest = max(longest, float(np.linalg.norm(delta)))
    assert longest < 10 * float(np.linalg.norm(line))


@every_population
@pytest.mark.parametrize("library", ["numpy-float32", "torch-bfloat16"])
def test_checkpoint_in_the_middle(entry: Enrolled, closed: bool, library: str) -> None:
    """A state that went through its packed form and JSON continues bit for bit."""
    convert = LIBRARIES[library]
    happenings = events(12, closed=closed)
    straight = start(entry.rule(), closed=closed).play(happenings[:11], convert)
    arrays, meta = straight.state.pack()
    restored = State.unpack(arrays, json.loads(json.dumps(meta)))
    resumed = Played(entry.rule(), restored, straight.model.copy())
    assert packed(resumed.state) == packed(straight.state)
    straight.deltas.clear()
    straight.play(happenings[11:], convert)
    resumed.play(happenings[11:], convert)
    for one, other in zip(straight.deltas, resumed.deltas, strict=True):
        assert host(one).tobytes() == host(other).tobytes()
    assert packed(straight.state) == packed(resumed.state)


@every_population
def test_joining_and_leaving(entry: Enrolled, closed: bool) -> None:
    played = start(entry.rule(), closed=closed)
    draw = np.random.default_rng(13)

    def visit(number: int, names: list[Any], sizes: list[float] | None = None) -> None:
        updates = draw.standard_normal((len(names), DIM))
        count = len(names)
        played.play(
            [
                Event(
                    number=number,
                    clients=names,
                    updates=updates,
                    probabilities=[0.5] * count,
                    sizes=sizes,
                    steps=[2] * count,
                )
            ]
        )

    visit(1, [0, 1, 2], [4.0, 5.0, 6.0])
    visit(2, ["new", 3], [7.0, 8.0])
    assert "new" in members(played)
    clients = played.state.memory.clients  # type: ignore[attr-defined]
    assert clients.total == (sum(SIZES) - sum(SIZES[:4]) + 30 if closed else 30)
    played.state = played.rule.leave(played.state, ["new", np.int64(2)])
    assert not {"new", 2} & set(members(played))
    for name in ("new", 2, "never there"):
        with pytest.raises(RoundRefused, match=f"{name!r} is not a member") as refused:
            played.rule.estimate(played.state, [0, name])
        assert refused.value.clients == (name,)
        with pytest.raises(RoundRefused, match="is not a member"):
            played.rule.leave(played.state, [name])
    visit(3, ["newer", 2, 0], [1.0, 2.0, 3.0])
    believed = played.rule.estimate(played.state, ["newer", 2])
    assert believed is None or np.isfinite(host(believed)).all()
    assert all(np.isfinite(delta).all() for delta in played.deltas)


@every_rule
def test_a_client_that_left_and_returns_is_a_newcomer(entry: Enrolled) -> None:
    """After leaving, neither the same client nor the next one in its slot finds anything left."""
    if entry.options.get("coordinates") == "own":
        pytest.skip("the client that comes back has a column of its own, the stranger has not")
    played = start(entry.rule()).play(events(14, rounds=30, departures=False))
    number = played.state.clients.number
    played.state = played.rule.leave(played.state, [3])
    stranger, deltas = "late-57", []  # of the same cluster as client 3, where clusters are given
    draw = np.random.default_rng(1)
    updates = draw.standard_normal((4, DIM))
    for client in (3, stranger):
        branch = played.copy()
        for ahead, update in enumerate(updates, start=1):
            sizes = [4.0] if ahead == 1 else None
            event = Event(
                number=number + ahead,
                clients=[client],
                updates=update[None],
                probabilities=[0.4],
                sizes=sizes,
                steps=[2],
            )
            branch.play([event])
        deltas.append(branch.deltas)
    np.testing.assert_allclose(deltas[0], deltas[1], rtol=0, atol=1e-9)


@every_rule
def test_leaving_twice_in_one_breath_is_leaving_once(entry: Enrolled) -> None:
    played = start(entry.rule()).play(events(14, rounds=12, departures=False))
    once = played.rule.leave(played.state.copy(), [3])
    twice = played.rule.leave(played.state, [3, np.int64(3)])
    assert packed(once) == packed(twice)


@every_rule
def test_all_clients_leave(entry: Enrolled) -> None:
    played = start(entry.rule()).play(events(15, rounds=12))
    gone = played.state.memory.clients  # type: ignore[attr-defined]
    played.state = played.rule.leave(played.state, gone.members())
    played.play([nobody(gone.number + 1)])
    assert not played.deltas[-1].any()


@every_rule
def test_consumed_state_raises(entry: Enrolled) -> None:
    rule = entry.rule()
    state = rule.init(DIM, SIZES)
    rule.step(state, as_round(nobody(1), FLOAT64, np.zeros(DIM)))
    assert "used-up" in repr(state)
    with pytest.raises(StateError, match=r"use step\.state"):
        rule.step(state, as_round(nobody(2), FLOAT64, np.zeros(DIM)))
    with pytest.raises(StateError):
        rule.plan(state, 2, [0])
    with pytest.raises(StateError):
        rule.leave(state, [0])


@every_rule
def test_state_of_another_rule_is_refused(entry: Enrolled) -> None:
    other = make_rule("fedavg" if entry.name != "fedavg" else "fedvarp")
    state = other.init(DIM, SIZES)
    with pytest.raises(StateError, match=f"{other.name} state was given to {entry.name}"):
        entry.rule().step(state, as_round(nobody(1), FLOAT64, np.zeros(DIM)))
    assert state.memory is not None


@every_rule
def test_a_round_writes_nothing_it_was_given(entry: Enrolled) -> None:
    played = start(entry.rule())
    for event in events(16):
        if event.leaving:
            played.play([event])
            continue
        given = as_round(event, FLOAT64, played.model)
        before = given.updates.copy()
        step = played.rule.step(played.state, given)
        played.state = step.state
        assert np.array_equal(before, given.updates)
        given.updates[:] = np.nan  # nor does it keep a view: the caller may reuse its buffer
        assert not event.clients or not np.shares_memory(step.delta, given.updates)
        assert np.isfinite(step.delta).all()


@every_rule
def test_plan_asks_the_available_clients(entry: Enrolled) -> None:
    """Whatever is asked of whom, only available or reachable clients are asked, each once."""
    played = start(entry.rule()).play(events(17, departures=False))
    number = played.state.clients.number + 1
    before = packed(played.state)
    for ahead in range(3):
        asked = played.rule.plan(played.state, number + ahead, [np.int64(4), 1])
        assert len(set(asked.everyone)) == len(asked.everyone)
        assert set(asked.train + asked.collect) <= {1, 4}
        assert all(type(client) is int for client in asked.train + asked.collect)
    assert packed(played.state) == before
