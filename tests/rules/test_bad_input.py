"""Bad input: refused with a name and without a trace, or dropped as if it had not been there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, RoundRefused, make_rule
from tests.rules.enrolled import (
    DIM,
    ENROLLED,
    FLOAT64,
    LIBRARIES,
    Enrolled,
    as_round,
    events,
    every_rule,
    packed,
    start,
)
from tests.rules.middle import each_rule, good_round, in_the_middle


def with_update(value: float) -> Callable[[Round], Round]:
    def change(round: Round) -> Round:
        updates = round.updates.copy()
        updates[1, 3] = value
        return replace(round, updates=updates)

    return change


def with_vector(name: str, value: float) -> Callable[[Round], Round]:
    def change(round: Round) -> Round:
        values = [2.0 if name == "steps" else 0.5] * len(round.clients)
        values[1] = value
        return replace(round, **{name: values})

    return change


def listed(bad: Any) -> Callable[[Round], Round]:
    def change(round: Round) -> Round:
        updates = list(round.updates)
        updates[1] = bad
        return replace(round, updates=updates)

    return change


def stranger(round: Round) -> Round:
    clients = list(round.clients)
    clients[1] = "stranger"
    return replace(round, clients=clients)


FAULTS: dict[str, tuple[Callable[[Round], Round], str]] = {
    "nan update": (with_update(np.nan), "non-finite"),
    "infinite update": (with_update(np.inf), "non-finite"),
    "minus infinite update": (with_update(-np.inf), "non-finite"),
    "wrong length": (listed(np.ones(DIM - 1)), r"shape \(11,\), expected \(12,\)"),
    "wrong type": (listed(np.ones(DIM, int)), "int64"),
    "no array": (listed([1.0] * DIM), "not list"),
    "nothing": (listed(None), "not NoneType"),
    "other library": (listed(torch.ones(DIM)), "sent torch arrays"),
    "nan in a list": (listed(np.full(DIM, np.nan)), "non-finite"),
    "probability 0": (with_vector("probabilities", 0.0), r"in \(0, 1\]"),
    "probability below 0": (with_vector("probabilities", -0.5), r"in \(0, 1\]"),
    "probability above 1": (with_vector("probabilities", 1.5), r"in \(0, 1\]"),
    "probability nan": (with_vector("probabilities", np.nan), r"in \(0, 1\]"),
    "size 0": (with_vector("sizes", 0.0), "positive and finite"),
    "size below 0": (with_vector("sizes", -3.0), "positive and finite"),
    "size nan": (with_vector("sizes", np.nan), "positive and finite"),
    "size infinite": (with_vector("sizes", np.inf), "positive and finite"),
    "steps 0": (with_vector("steps", 0.0), "whole number from 1"),
    "steps next to 0": (with_vector("steps", 5e-324), "whole number from 1"),
    "half a step": (with_vector("steps", 1.5), "whole number from 1"),
    "endless steps": (with_vector("steps", 1e10), "whole number from 1 to 1e\\+09"),
    "stranger": (stranger, "unknown"),
}
every_fault = pytest.mark.parametrize("fault", FAULTS)
LIGHT = ["nan update", "infinite update", "wrong length", "size nan", "stranger"]


def refused(entry: Enrolled, fault: str) -> None:
    change, words = FAULTS[fault]
    played = in_the_middle(entry, "refuse")
    good = good_round(played)
    bad = change(good)
    culprit = bad.clients[1]
    before, untouched = packed(played.state), played.copy()
    with pytest.raises(RoundRefused, match=words) as error:
        played.rule.step(played.state, bad)
    assert error.value.clients == (culprit,)
    assert f"client {culprit!r}" in str(error.value)
    assert "client 1 " not in str(error.value) and "client 6" not in str(error.value)
    assert packed(played.state) == before
    # The same handle accepts the repaired round, as if nothing had happened.
    after = played.rule.step(played.state, good)
    expected = untouched.rule.step(untouched.state, good)
    assert after.delta.tobytes() == expected.delta.tobytes()
    assert packed(after.state) == packed(expected.state)


def dropped(entry: Enrolled, fault: str) -> None:
    change, words = FAULTS[fault]
    played = in_the_middle(entry, "drop")
    other = played.copy()
    bad = change(good_round(played))
    step = played.rule.step(played.state, bad)
    expected = other.rule.step(other.state, bad.without({1}))
    assert step.delta.tobytes() == expected.delta.tobytes()
    assert packed(step.state) == packed(expected.state)
    assert list(step.diagnostics.dropped) == [bad.clients[1]]
    assert re.search(words, step.diagnostics.dropped[bad.clients[1]])
    assert step.diagnostics.clients == expected.diagnostics.clients == (1, 6)
    assert not expected.diagnostics.dropped


@each_rule
@every_fault
def test_refuse_names_the_client_and_leaves_the_state_alone(entry: Enrolled, fault: str) -> None:
    refused(entry, fault)


@each_rule
@every_fault
def test_drop_is_as_if_the_client_had_not_been_there(entry: Enrolled, fault: str) -> None:
    dropped(entry, fault)


@every_rule
@pytest.mark.parametrize("policy", [refused, dropped])
def test_whatever_the_options(entry: Enrolled, policy: Callable[[Enrolled, str], None]) -> None:
    for fault in LIGHT:
        policy(entry, fault)


@every_rule
def test_in_the_very_first_round(entry: Enrolled) -> None:
    """Nothing is known yet, not even the type of the updates."""
    for policy in ("refuse", "drop"):
        played = start(entry.rule(bad_clients=policy))
        before = packed(played.state)
        bad = with_update(np.nan)(good_round(played))
        if policy == "refuse":
            with pytest.raises(RoundRefused, match="client 4 sent a non-finite update"):
                played.rule.step(played.state, bad)
            assert packed(played.state) == before
            continue
        other = played.copy()
        step = played.rule.step(played.state, bad)
        expected = other.rule.step(other.state, bad.without({1}))
        assert packed(step.state) == packed(expected.state)
        assert step.delta.tobytes() == expected.delta.tobytes()


@each_rule
def test_both_of_a_pair_of_duplicates_are_at_fault(entry: Enrolled) -> None:
    played = in_the_middle(entry, "refuse")
    bad = good_round(played, (1, 4, 6, np.int64(4)))
    with pytest.raises(RoundRefused, match="client 4 appears more than once") as error:
        played.rule.step(played.state, bad)
    assert set(error.value.clients) == {4}
    played = in_the_middle(entry, "drop")
    other = played.copy()
    step = played.rule.step(played.state, bad)
    assert packed(step.state) == packed(other.rule.step(other.state, bad.without({1, 3})).state)
    assert list(step.diagnostics.dropped) == [4]


@each_rule
@pytest.mark.parametrize("library", ["numpy-float32", "torch-float32"])
@pytest.mark.parametrize("as_list", [True, False])
def test_if_all_clients_are_dropped_the_round_is_empty(
    entry: Enrolled, library: str, as_list: bool
) -> None:
    convert = LIBRARIES[library]
    played = in_the_middle(entry, "drop", library)
    other = played.copy()
    good = good_round(played)
    spoilt = convert(np.full((3, DIM), np.nan))
    short = [convert(np.ones(DIM - less)) for less in (1, 2, 3)]
    bad = replace(good, updates=short if as_list else spoilt, model=convert(played.model))
    nobody = replace(bad, clients=[], updates=[], probabilities=[], steps=[])
    step = played.rule.step(played.state, bad)
    expected = other.rule.step(other.state, nobody)
    assert type(step.delta) is type(expected.delta) is type(spoilt)
    assert step.delta.dtype == spoilt.dtype
    assert bool((step.delta == expected.delta).all())
    assert packed(step.state) == packed(expected.state)
    assert set(step.diagnostics.dropped) == {1, 4, 6}


@each_rule
def test_several_faults_of_several_clients_are_all_named(entry: Enrolled) -> None:
    played = in_the_middle(entry, "refuse")
    bad = replace(good_round(played), probabilities=[0.5, 2.0, -1.0])
    with pytest.raises(RoundRefused, match=r"client 4 .* \(the same for 6\)") as error:
        played.rule.step(played.state, bad)
    assert error.value.clients == (4, 6)
    played = in_the_middle(entry, "drop")
    other = played.copy()
    bad = with_update(np.nan)(replace(bad, probabilities=[0.5, 0.5, -1.0]))
    step = played.rule.step(played.state, bad)  # found one after the other, both dropped
    assert packed(step.state) == packed(other.rule.step(other.state, bad.without({1, 2})).state)
    assert set(step.diagnostics.dropped) == {4, 6}
    assert "non-finite" in step.diagnostics.dropped[4]


@pytest.mark.parametrize("like", [None, torch.zeros(1)])
def test_an_unusable_update_in_first_place_is_dropped_alone(like: Any) -> None:
    rule = make_rule("fedavg", probabilities=1.0, bad_clients="drop")
    good = torch.ones(4)
    for bad in (None, torch.ones(3)):
        state = rule.init(4, np.ones(3), like=like)
        step = rule.step(state, Round(number=1, clients=[0, 1, 2], updates=[bad, good, good]))
        assert set(step.diagnostics.dropped) == {0}
        np.testing.assert_allclose(step.delta, 2 / 3, rtol=1e-6)
        alone = rule.step(step.state, Round(number=2, clients=[0], updates=[bad]))
        assert set(alone.diagnostics.dropped) == {0} and isinstance(alone.delta, torch.Tensor)
    state = rule.init(4, np.ones(3), like=good)
    step = rule.step(state, Round(number=1, clients=[0, 1, 2], updates=[np.ones(4), good, good]))
    assert set(step.diagnostics.dropped) == {0}


LAYERS = [np.ones((2, 3)), np.ones(2)]
MALFORMED = {
    "layers": (LAYERS, "not list"),
    "a state dict": ({"weight": LAYERS[0], "bias": LAYERS[1]}, "not dict"),
    "a matrix": (np.ones((2, 4)), r"shape \(2, 4\)"),
    "too short": (np.ones(7), r"shape \(7,\)"),
    "integers": (np.ones(8, int), "int64"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_updates_that_are_all_malformed_alike_are_a_mistake_of_the_loop(kind: str) -> None:
    """Even if bad clients are dropped; but one client cannot stop a loop that works."""
    bad, words = MALFORMED[kind]
    rule, good = make_rule("fedsteer", preset="practical"), np.ones(8)
    message = f"{words}.*; an update is one vector of 8 floating-point numbers"
    state = rule.init(8)
    for count in (1, 3):
        with pytest.raises(RoundRefused, match=message) as error:
            rule.step(state, Round(number=1, clients=range(count), updates=[bad] * count))
        assert len(error.value.clients) == count and "\n" not in str(error.value)
    sent = Round(number=1, clients=[0, 1, 2], updates=[bad, bad, good])
    state = rule.step(state, sent).state
    step = rule.step(state, Round(number=2, clients=[0], updates=[bad]))
    assert set(step.diagnostics.dropped) == {0}
    with pytest.raises(RoundRefused, match=message):
        rule.step(step.state, Round(number=3, clients=[0, 1], updates=[bad] * 2))


def test_fedawe_drops_clients_that_started_from_nan() -> None:
    rule = make_rule("fedawe", bad_clients="drop")
    starts = np.array([[np.nan] * 8, [0.0] * 8])
    given = Round(
        number=1, clients=[0, 1], updates=np.ones((2, 8)), model=np.zeros(8), starts=starts
    )
    step = rule.step(rule.init(8, np.ones(2)), given)
    assert step.diagnostics.dropped == {0: "has a start model that is not finite"}
    np.testing.assert_array_equal(step.delta, 1.0)
    with pytest.raises(RoundRefused, match="model must be of floating point, not int64"):
        rule.step(step.state, replace(given, number=2, model=np.zeros(8, int)))


def test_an_unusable_first_update_affects_no_other_client() -> None:
    rule = make_rule("fedavg", probabilities=0.5, bad_clients="drop")
    sent = Round(number=1, clients=[0, 1, 2], updates=[np.zeros(3), torch.ones(5), torch.ones(5)])
    assert list(rule.step(rule.init(5, np.ones(3)), sent).diagnostics.dropped) == [0]


def test_who_only_refreshes_does_not_move_fedawe() -> None:
    played = in_the_middle(ENROLLED["fedawe"], "drop")
    other, both = played.copy(), good_round(played)
    step = played.rule.step(played.state, replace(both, refresh=[4, 6]))
    alone = other.rule.step(other.state, both.without({1, 2}))
    np.testing.assert_allclose(step.delta, alone.delta, rtol=1e-12)
    assert step.diagnostics.weights.tolist()[1:] == [0.0, 0.0]


@pytest.mark.parametrize("solver", ["cholesky", "gradient"])
@pytest.mark.parametrize("refresh", ["after", "before"])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("library", ["numpy-float32", "torch-float32"])
def test_non_finite_updates_in_every_path_of_fedsteer(
    solver: str, refresh: str, ridge: float, library: str
) -> None:
    """No path may raise, warn, or run for minutes on numbers that are none."""
    entry = Enrolled(
        "fedsteer", {"core_set": (1, 4), "solver": solver, "refresh": refresh, "ridge": ridge}
    )
    played = in_the_middle(entry, "drop", library)
    for number, value in enumerate((np.nan, np.inf), start=10):
        event = events(3, rounds=1)[0]
        event.number, event.clients = number, [1, 4, 6]
        event.updates = np.random.default_rng(1).standard_normal((3, DIM))
        event.updates[1] = value
        event.probabilities, event.steps, event.sizes = [0.5] * 3, [1] * 3, None
        step = played.rule.step(played.state, as_round(event, LIBRARIES[library], np.zeros(DIM)))
        played.state = step.state
        assert list(step.diagnostics.dropped) == [4]
        assert bool(np.isfinite(np.asarray(step.delta)).all())


def test_good_rounds_convert() -> None:
    """The good round of these tests is one; otherwise they would prove nothing."""
    for entry in ENROLLED.values():
        played = in_the_middle(entry, "refuse")
        assert FLOAT64(good_round(played).updates).shape == (3, DIM)
        played.rule.step(played.state, good_round(played))
