"""Diagnostics are worked out when they are looked at: later than the step, and no worse for it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np

from fedsteer import Diagnostics, Round, make_rule
from tests.rules.enrolled import FLOAT64, Enrolled, as_round, events, every_rule, start

LISTS = (
    *("weights", "probabilities", "staleness", "norms"),
    *("relative_errors", "refreshed_errors", "cosines"),
)
NUMBERS = ("variance", "condition", "columns", "delta_norm", "bound_factor")


def facts(told: Diagnostics) -> list[Any]:
    """Everything, in a form that compares with ==, nan with nan as well."""
    lists = [getattr(told, name).tobytes() for name in LISTS]
    return [lists, np.array([getattr(told, name) for name in NUMBERS]).tobytes(), told.core_set]


@every_rule
def test_a_late_look_finds_what_an_early_one_does(entry: Enrolled) -> None:
    happenings = events(6)
    early, found = start(entry.rule()), []
    for event in happenings:
        early.play([event])
        found += [facts(told) for told in early.diagnostics[len(found) :]]
    late = start(entry.rule()).play(happenings)
    assert [facts(told) for told in late.diagnostics] == found
    assert len({repr(fact) for fact in found}) > 3


@every_rule
def test_diagnostics_hold_no_update(entry: Enrolled) -> None:
    played, kept, gone = start(entry.rule()), [], []
    for event in events(7, rounds=10):
        if event.leaving:
            continue
        round = as_round(event, FLOAT64, played.model)
        step = played.rule.step(played.state, round)
        kept.append(step.diagnostics)
        gone += [weakref.ref(round.updates), weakref.ref(step.delta)]
        played.state = step.state
    del round, step
    gc.collect()
    assert kept and [place() is None for place in gone] == [True] * len(gone)


def test_staleness() -> None:
    rule = make_rule("fedavg")
    state = rule.init(2, [1, 1, 1])
    step = rule.step(
        state, Round(number=2, clients=[0, 1], updates=np.ones((2, 2)), probabilities=[0.5, 0.5])
    )
    assert np.isnan(step.diagnostics.staleness).all()
    later = rule.step(
        step.state,
        Round(number=7, clients=[2, 1], updates=np.ones((2, 2)), probabilities=[0.5, 0.5]),
    ).diagnostics
    np.testing.assert_array_equal(later.staleness, [np.nan, 5])


def test_nothing_happened() -> None:
    told = Diagnostics(phase="warm-up")
    assert told.clients == () and not told.columns
    assert np.isnan([told.variance, told.condition]).all()
    assert all(getattr(told, name).shape == (0,) for name in LISTS)


def test_visits_are_counted_from_the_end_of_the_warm_up() -> None:
    rule = make_rule("fedsteer", core_size=1, cycles=1)
    state, updates = rule.init(3, [1.0] * 2), np.eye(2, 3)
    first = rule.step(
        state, Round(number=1, clients=[0, 1], updates=updates, probabilities=[0.5] * 2)
    )
    assert rule.phase(first.state) == "train"
    second = rule.step(
        first.state, Round(number=2, clients=[0], updates=updates[:1], probabilities=[0.5])
    )
    third = rule.step(
        second.state, Round(number=3, clients=[0, 1], updates=updates, probabilities=[0.5] * 2)
    )
    assert second.diagnostics.last_seen.tolist() == [0]
    assert third.diagnostics.last_seen.tolist() == [2, 0]
