"""The bound on single updates against its reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, make_rule
from fedsteer.steering.bounds import NormBound
from fedsteer.steering.usual import LATEST
from tests.reference.update_bound import NaiveUpdateBound
from tests.rules.enrolled import DIM, SIZES, events


@pytest.mark.parametrize("times", [0.7, 2.0])
@pytest.mark.parametrize("name", ["fedvarp", "fedavg", "fedsteer"])
def test_a_bounded_rule_is_the_rule_with_shortened_updates(name: str, times: float) -> None:
    options: dict[str, Any] = {"core_set": [1, 4, 7]} if name == "fedsteer" else {}
    bounded, free = make_rule(name, update_bound=times, **options), make_rule(name, **options)
    naive, one, other = NaiveUpdateBound(times), bounded.init(DIM, SIZES), free.init(DIM, SIZES)
    acted = 0
    for event in events(3, rounds=60):
        if event.leaving:
            one, other = bounded.leave(one, event.leaving), free.leave(other, event.leaving)
            naive.leave(event.leaving)
            continue
        rest: dict[str, Any] = {
            "number": event.number,
            "clients": event.clients,
            "probabilities": event.probabilities,
            "sizes": event.sizes,
        }
        shorter = bounded.step(one, Round(updates=event.updates, **rest))
        plain = free.step(
            other, Round(updates=naive.shortened(event.clients, event.updates), **rest)
        )
        one, other = shorter.state, plain.state
        np.testing.assert_allclose(shorter.delta, plain.delta, rtol=1e-9, atol=1e-12)
        factors = shorter.diagnostics.update_factors
        if factors is not None:
            acted += 1
            assert factors.min() < 1 and factors.max() <= 1
    assert acted > 3


def keep(bound: NormBound, norms: Any) -> None:
    """The first clients send updates of these lengths."""
    nothing, slots = np.zeros(len(norms)), np.arange(len(norms))
    bound.keep(slots, norms, nothing, nothing + 1, norms)


def shortening(bound: NormBound, *norms: float, slots: Any = None) -> Any:
    """For strangers, unless slots are given."""
    slots = LATEST + np.arange(len(norms)) if slots is None else np.array(slots)
    return bound.shortening(slots, np.array(norms)).tolist()


def test_the_median_is_of_earlier_rounds_and_of_the_latest_updates_only() -> None:
    bound = NormBound(times=2.0)
    assert shortening(bound, 1.0, 1.0, 10.0) == pytest.approx([1.0, 1.0, 0.04])
    keep(bound, np.array([1.0, 1.0, 10.0]))
    assert shortening(bound, 2.0) == [1.0]
    assert shortening(bound, 8.0, 4.0) == [0.0625, 0.25]
    keep(bound, np.full(LATEST, 10.0))
    assert len(bound.latest) == LATEST
    assert shortening(bound, 20.0, 40.0) == [1.0, 0.25]


def test_a_client_may_be_used_to_longer_updates_but_not_to_much_longer_ones() -> None:
    bound = NormBound(times=2.0)
    keep(bound, np.array([1.0, 1.0, 1.0, 3.0, 1000.0]))
    assert shortening(bound, 6.0, 6.0, slots=[0, 3]) == pytest.approx([1 / 9, 1.0])
    assert shortening(bound, 12.0, 12.0, slots=[3, 4]) == pytest.approx([0.25, 4 / 9])
    bound.forget(np.array([3]), np.array([1.0]))
    assert shortening(bound, 6.0, slots=[3]) == pytest.approx([1 / 9])


def test_nothing_to_compare_with_shortens_nothing() -> None:
    bound = NormBound(times=2.0)
    assert shortening(bound, 0.0, 0.0, 0.0) == [1.0] * 3
    keep(bound, np.zeros(3))
    assert shortening(bound, 5.0) == [1.0]


@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_one_huge_update_neither_moves_the_model_nor_ends_the_run(library: Any) -> None:
    rule = make_rule("fedavg", update_bound=4.0, probabilities=1.0)
    state = rule.init(3, [1, 1, 1])
    for number in range(1, 4):
        updates = np.ones((3, 3), np.float32)
        if number == 3:
            updates[1] = -1e18
        given = Round(number=number, clients=[0, 1, 2], updates=library(updates))
        done = rule.step(state, given)
        state = done.state
    assert done.diagnostics.delta_norm == pytest.approx(2 / 3 * 3**0.5)  # nothing of it is left
    assert done.diagnostics.update_factors is not None
    np.testing.assert_array_equal(done.diagnostics.update_factors[[0, 2]], 1.0)
    assert float(library(updates)[1, 0]) == np.float32(-1e18)  # the caller's array is untouched
