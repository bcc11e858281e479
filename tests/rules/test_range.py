"""How small and how large updates may be: docs/guarantees.md says it for float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, make_rule

CLIENTS, ASKED, DIM, ROUNDS = 12, 4, 1000, 20


def deltas(name: str, scale: float, dtype: Any, library: Any = np) -> np.ndarray:
    """The steps of a story in which every number is `scale` times as large; divided by `scale`."""
    draw = np.random.default_rng(0)
    common = draw.normal(size=DIM)
    rule, found = make_rule(name, preset="practical"), []
    state = rule.init(DIM, np.ones(CLIENTS))
    for number in range(1, ROUNDS + 1):
        here = np.sort(draw.choice(CLIENTS, ASKED, replace=False)).tolist()
        updates = ((common + draw.normal(size=(ASKED, DIM))) * scale).astype(dtype)
        given = updates if library is np else torch.from_numpy(updates)
        step = rule.step(state, Round(number=number, clients=here, updates=given))
        state = step.state
        found.append(np.asarray(step.delta, np.float64) / scale)
    return np.array(found)


def lengths(steps: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.linalg.norm(steps, axis=1)
    return found


@pytest.mark.parametrize("library", [np, torch])
@pytest.mark.parametrize("name", ["fedavg", "fedsteer"])
@pytest.mark.parametrize("scale", [1e-20, 1e-10, 1.0, 1e17])
def test_float32_is_exact_from_1e_20_to_1e_17(scale: float, name: str, library: Any) -> None:
    found, exact = deltas(name, scale, np.float32, library), deltas(name, 1.0, np.float64)
    assert (lengths(found - exact) < 1e-6 * lengths(exact)).all()


@pytest.mark.parametrize("library", [np, torch])
@pytest.mark.parametrize("name", ["fedavg", "fedsteer"])
@pytest.mark.parametrize("scale", [1e-22, 1e-24, 1e-30, 1e-40])
def test_smaller_numbers_shorten_steps(scale: float, name: str, library: Any) -> None:
    """Their squares vanish, so aggregates seem not to agree, and FedSteer's columns to be zeros."""
    found, exact = deltas(name, scale, np.float32, library), deltas(name, 1.0, np.float64)
    short, long = lengths(found), lengths(exact)
    assert (short < 1.02 * long).all() and (short > 0.08 * long).all()


@pytest.mark.parametrize("library", [np, torch])
@pytest.mark.parametrize("name", ["fedavg", "fedsteer"])
@pytest.mark.parametrize(("length", "used"), [(1.8e19, True), (1.9e19, False)])
def test_longer_updates_are_left_out(length: float, used: bool, name: str, library: Any) -> None:
    rule = make_rule(name, preset="practical")
    updates = np.full((1, DIM), length / np.sqrt(DIM), np.float32)
    given = updates if library is np else torch.from_numpy(updates)
    step = rule.step(rule.init(DIM, np.ones(2)), Round(number=1, clients=[0], updates=given))
    assert (0 in step.diagnostics.dropped) is not used
    assert np.isfinite(np.asarray(step.delta)).all()
