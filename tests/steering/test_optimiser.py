"""Server optimisers against their plain formulas, in NumPy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import ConfigurationError, ServerOptimiser, State, StateError
from fedsteer.errors import Diverged
from fedsteer.steering.optimiser import METHODS
from tests.rules.enrolled import packed

DIM = 6


def test_what_cannot_be_computed_leaves_the_state() -> None:
    optimiser = ServerOptimiser("adam")
    _, state = optimiser.step(optimiser.init(), np.zeros(3), np.ones(3))
    with pytest.raises(ValueError, match="broadcast"):
        optimiser.step(state, np.zeros(3), np.ones(4))
    optimiser.step(state, np.zeros(3), np.ones(3))


def deltas(rounds: int = 12) -> Any:
    draw = np.random.default_rng(0)
    made = draw.standard_normal((rounds, DIM))
    made[3] = 0.0
    made[5] = made[4]
    return made


def plain(method: str, rate: float, beta1: float, beta2: float, tau: float) -> list[Any]:
    """The formulas of the module docstring, number by number."""
    model, first, second = np.zeros(DIM), np.zeros(DIM), np.zeros(DIM)
    models = []
    for delta in deltas():
        for j in range(DIM):
            if method == "sgd":
                model[j] -= rate * delta[j]
                continue
            if method == "momentum":
                first[j] = beta1 * first[j] + delta[j]
                model[j] -= rate * first[j]
                continue
            first[j] = beta1 * first[j] + (1 - beta1) * delta[j]
            square = delta[j] ** 2
            if method == "adam":
                second[j] = beta2 * second[j] + (1 - beta2) * square
            else:
                second[j] -= (1 - beta2) * square * np.sign(second[j] - square)
            model[j] -= rate * first[j] / (np.sqrt(second[j]) + tau)
        models.append(model.copy())
    return models


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equals_the_plain_formula(method: str, library: str, dtype: str) -> None:
    optimiser = ServerOptimiser(method, rate=0.3, beta1=0.8, beta2=0.95, tau=1e-2)
    made = deltas().astype(dtype)
    given = torch.tensor(made) if library == "torch" else made
    model, state = given[0] * 0, optimiser.init()
    for delta, expected in zip(given, plain(method, 0.3, 0.8, 0.95, 1e-2), strict=True):
        kept = delta + 0
        moved, state = optimiser.step(state, model, delta)
        assert moved is not model and moved.dtype == given.dtype
        assert bool((delta == kept).all())
        model = moved
        tolerance = 1e-12 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(np.asarray(model), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("method", METHODS)
def test_checkpoint_continues_bit_for_bit(method: str) -> None:
    optimiser = ServerOptimiser(method, rate=0.1)
    model, state = np.zeros(DIM, np.float32), optimiser.init()
    for delta in deltas()[:5].astype(np.float32):
        model, state = optimiser.step(state, model, delta)
    restored = State.unpack(*state.pack())
    assert packed(restored) == packed(state)
    one, other = model, model.copy()
    for delta in deltas()[5:].astype(np.float32):
        one, state = optimiser.step(state, one, delta)
        other, restored = optimiser.step(restored, other, delta)
    assert one.tobytes() == other.tobytes()


def test_a_state_is_used_once() -> None:
    optimiser = ServerOptimiser("adam")
    state = optimiser.init()
    optimiser.step(state, np.zeros(2), np.ones(2))
    with pytest.raises(StateError):
        optimiser.step(state, np.zeros(2), np.ones(2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "addam"}, "did you mean 'adam'"),
        ({"rate": 0.0}, "above 0"),
        ({"rate": float("nan")}, "above 0"),
        ({"beta1": 1.0}, "below 1"),
        ({"beta2": -0.1}, "below 1"),
        ({"tau": 0.0}, "tau"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ServerOptimiser(**options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_the_averaged_model_is_a_mean_that_forgets(method: str, library: Any) -> None:
    """Of all models at first; from round R on each counts 1 - 1/R times what it did."""
    memory = 4
    optimiser, alone = ServerOptimiser(method, average=memory), ServerOptimiser(method)
    state, other = optimiser.init(), alone.init()
    model = same = library(np.zeros(DIM))
    models: list[Any] = []
    assert optimiser.averaged(state) is None
    for delta in deltas():
        model, state = optimiser.step(state, model, library(delta))
        same, other = alone.step(other, same, library(delta))
        models.append(np.asarray(model))
        count = min(len(models), memory)
        shares = [1.0]
        for t in range(2, len(models) + 1):
            share = 1 / min(t, memory)
            shares = [old * (1 - share) for old in shares] + [share]
        assert count < memory or shares[-1] == 1 / memory
        expected = sum(w * m for w, m in zip(shares, models, strict=True))
        np.testing.assert_allclose(np.asarray(optimiser.averaged(state)), expected, atol=1e-12)
    np.testing.assert_array_equal(np.asarray(model), np.asarray(same))  # only beside it
    again = optimiser.averaged(State.unpack(*state.pack(), like=model))
    np.testing.assert_array_equal(np.asarray(again), np.asarray(optimiser.averaged(state)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("library", [np, torch])
def test_a_step_to_infinity_is_refused_and_nothing_has_moved(method: str, library: Any) -> None:
    """Nor do moments become infinite, which would hold the model for ever."""
    optimiser = ServerOptimiser(method, average=3)
    state, model = optimiser.init(), library.ones(2, dtype=library.float32)
    model, state = optimiser.step(state, model, 0.1 * model)
    before = packed(state)
    for wrong in (np.nan, np.inf, -3e38):
        with pytest.raises(Diverged, match="not be finite"):
            optimiser.step(state, 1e38 * model, wrong * library.ones(2, dtype=library.float32))
    assert packed(state) == before
    with pytest.raises(Diverged, match="not be finite"):
        optimiser.step(state, model, 0.1 * model, lambda moved: False)
    optimiser.step(state, model, 0.1 * model)
