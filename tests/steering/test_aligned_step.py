"""The aligned step against its reference, inside rules, and what it promises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, State, make_rule
from fedsteer.steering.aligned_step import FIRST, LEAST, AlignedStep
from tests.reference.aligned_step import NaiveAlignedStep
from tests.rules.enrolled import DIM, SIZES, events


@pytest.mark.parametrize("options", [{}, {"norm_bound": 0.5}])
@pytest.mark.parametrize("name", ["fedvarp", "fedavg", "mifa"])
def test_an_aligned_rule_is_the_rule_scaled_by_the_reference(
    name: str, options: dict[str, float]
) -> None:
    aligned, fixed = make_rule(name, step="aligned", **options), make_rule(name, **options)
    naive, one, other = NaiveAlignedStep(), aligned.init(DIM, SIZES), fixed.init(DIM, SIZES)
    factors = []
    for event in events(1, rounds=60):
        if event.leaving:
            one, other = aligned.leave(one, event.leaving), fixed.leave(other, event.leaving)
            continue
        given = Round(
            number=event.number,
            clients=event.clients,
            updates=event.updates,
            probabilities=event.probabilities,
            sizes=event.sizes,
        )
        factors.append(naive.factor)
        scaled, plain = aligned.step(one, given), fixed.step(other, given)
        one, other = scaled.state, plain.state
        expected, alignment = naive.step(plain.delta)
        np.testing.assert_allclose(scaled.delta, expected, rtol=1e-9, atol=1e-12)
        found = scaled.diagnostics
        assert found.step_factor == pytest.approx(factors[-1], rel=1e-9)
        assert found.alignment == pytest.approx(alignment, abs=1e-9, nan_ok=True)
        assert found.delta_norm == pytest.approx(float(np.linalg.norm(expected)), abs=1e-12)
    assert max(factors) > 1.1 * FIRST and len(set(factors)) > 30


@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_it_rises_to_one_and_falls_to_its_least(library) -> None:  # type: ignore[no-untyped-def]
    step, delta = AlignedStep(), library(np.array([3.0, 4.0], np.float32))
    assert math.isnan(step.observe(delta, 5.0))
    for _ in range(30):
        assert step.observe(delta, 5.0) == pytest.approx(1.0)
    assert step.factor == 1.0
    step.observe(-delta, 5.0)
    assert step.factor == pytest.approx(math.exp(-0.6))
    for sign in range(40):
        step.observe(delta * (10.0 if sign % 2 else -10.0), 50.0)
    assert step.factor < 0.1 and step.factor >= LEAST


def test_an_aggregate_of_zeros_changes_nothing_but_the_mean() -> None:
    step = AlignedStep()
    step.observe(np.array([1.0, 0.0]), 1.0)
    assert math.isnan(step.observe(np.zeros(2), 0.0))
    assert step.factor == FIRST
    assert step.mean is not None
    np.testing.assert_allclose(step.mean, [0.09, 0.0])
    assert step.squared_norm == pytest.approx(0.0081)


def played(step: str, nobody_fresh: str, empty: int, after: int = 8) -> tuple[State, list[str]]:
    """FedVARP over rounds in which two of three clients agree; one round may be empty."""
    rule = make_rule("fedvarp", step=step, nobody_fresh=nobody_fresh, probabilities=0.5)
    state, actions = rule.init(4, [1, 1, 1]), []
    for number in range(1, after + 1):
        clients = [] if number == empty else [number % 3, (number + 1) % 3]
        updates = np.ones((len(clients), 4)) * [[1, 2, 3, 4]]
        done = rule.step(state, Round(number=number, clients=clients, updates=updates))
        state, actions = done.state, [*actions, done.action]
    return state, actions


def test_a_round_without_a_fresh_update_holds_the_model_and_lengthens_no_step() -> None:
    state, actions = played("aligned", "hold", empty=5)
    assert actions == ["move"] * 4 + ["hold"] + ["move"] * 3
    without, _ = played("aligned", "hold", empty=8, after=8)
    one, other = state.memory.aligned, without.memory.aligned  # type: ignore[attr-defined]
    assert one.factor == pytest.approx(other.factor)
    assert played("aligned", "move", empty=5)[1] == ["move"] * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, None], ids=str)
def test_a_hold_is_no_movement_even_if_the_action_is_ignored(dtype: Any) -> None:
    rule = make_rule("fedvarp", step="aligned", nobody_fresh="hold", probabilities=0.5)
    updates: Any = np.ones((2, 3)) if dtype is None else torch.ones(2, 3, dtype=dtype)
    first = rule.step(rule.init(3, [1, 1]), Round(number=1, clients=[0, 1], updates=updates))
    held = rule.step(first.state, Round(number=2, clients=[], updates=[]))
    assert (first.action, held.action) == ("move", "hold")
    assert type(held.delta) is type(first.delta) and held.delta.dtype == first.delta.dtype
    assert held.delta.tolist() == [0.0, 0.0, 0.0]
    assert held.diagnostics.delta_norm == 0.0
    assert math.isnan(held.diagnostics.alignment)
