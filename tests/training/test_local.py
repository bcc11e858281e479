"""Batches, the step, augmentation, and the ranges of their options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError
from fedsteer.training import LocalTraining
from fedsteer.training.local import Descent, Order, augmented


def order_of(**given: Any) -> Order:
    usual: dict[str, Any] = {"points": np.arange(1), "seed": 0, "round": 0, "client": 0}
    return Order(**({"start": torch.zeros(0)} | usual | given))


def batches(how: LocalTraining, points: NDArray[np.int64], *key: int) -> list[NDArray[np.int64]]:
    seed, round, client = key
    order = order_of(points=points, seed=seed, round=round, client=client)
    table, sizes = order.schedule(how)
    return [row[:size] for row, size in zip(table, sizes, strict=True)]


@given(
    count=st.integers(1, 60),
    batch=st.integers(0, 70),
    epochs=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_every_point_comes_once_an_epoch(count: int, batch: int, epochs: int, seed: int) -> None:
    points = np.arange(100, 100 + count)
    found = batches(LocalTraining(epochs=epochs, batch=batch), points, seed, 7, 3)
    assert len(found) % epochs == 0
    per_epoch = len(found) // epochs
    for epoch in range(epochs):
        parts = found[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(np.concatenate(parts).tolist()) == points.tolist()
        assert all(len(part) == (batch or count) for part in parts[:-1])
        assert 1 <= len(parts[-1]) <= (batch or count)


def test_batches_are_a_function_of_seed_round_and_client() -> None:
    how, points = LocalTraining(epochs=2, batch=4), np.arange(30)

    def drawn(*key: int) -> list[list[int]]:
        return [part.tolist() for part in batches(how, points, *key)]

    assert drawn(0, 1, 2) == drawn(0, 1, 2)
    assert len({str(drawn(*key)) for key in [(0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3)]}) == 4
    assert drawn(0, 1, 2)[:8] != drawn(0, 1, 2)[8:], "epochs have orders of their own"


def test_without_shuffling_points_come_as_they_are_stored() -> None:
    points = np.array([9, 2, 7, 4, 5, 1, 8])
    how = LocalTraining(epochs=2, batch=3, shuffle=False)
    drawn = [part.tolist() for part in batches(how, points, 0, 1, 2)]
    assert drawn == [[9, 2, 7], [4, 5, 1], [8]] * 2


def test_a_step_is_the_sgd_of_torch() -> None:
    """Momentum and weight decay mean what they mean in torch.optim.SGD."""
    how = LocalTraining(rate=0.1, momentum=0.8, weight_decay=0.05)
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(7, generator=draw)
    descent = Descent(how, [order_of(start=start)])
    theirs = start.clone().requires_grad_()
    optimiser = torch.optim.SGD([theirs], lr=0.1, momentum=0.8, weight_decay=0.05)
    for _ in range(5):
        gradient = torch.randn(7, generator=draw)
        theirs.grad = gradient.clone()
        optimiser.step()
        descent.step(gradient[None])
    torch.testing.assert_close(descent.weights[0], theirs.detach())
    torch.testing.assert_close(descent.update()[0], start - theirs.detach())


def test_pull_and_correction_join_the_gradient() -> None:
    start, correction = torch.tensor([1.0, 1.0]), torch.tensor([-1.0, 1.0])
    order = order_of(start=start, correction=correction, proximal=0.5)
    descent = Descent(LocalTraining(rate=0.1), [order])
    descent.weights.copy_(torch.tensor([3.0, 1.0]))
    descent.step(torch.tensor([[10.0, 20.0]]))
    torch.testing.assert_close(descent.weights, torch.tensor([[3 - 0.1 * 10.0, 1 - 0.1 * 21.0]]))


def test_numbers_of_libraries_are_numbers() -> None:
    spelt = {"shuffle": np.bool_(False), "epochs": np.int64(3), "rate": np.array(0.5)}
    assert LocalTraining(**spelt, momentum=torch.tensor(0.25)) == LocalTraining(  # type: ignore[arg-type]
        shuffle=False, epochs=3, rate=0.5, momentum=0.25
    )
    assert {type(value) for value in vars(LocalTraining(**spelt)).values()} <= {  # type: ignore[arg-type]
        bool, int, float, str
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match="rate must be a number"):
        LocalTraining(rate=np.array([0.5]))  # type: ignore[arg-type]


def test_augmentation_shifts_and_flips_and_nothing_else() -> None:
    images = torch.rand((50, 2, 6, 5), generator=torch.Generator().manual_seed(0)) + 0.1
    out = augmented(images, generator(0, "augment"))
    assert out.shape == images.shape
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    flipped = 0
    for image, result in zip(padded, out, strict=True):
        windows = image.unfold(1, 6, 1).unfold(2, 5, 1).flatten(1, 2).unbind(1)  # all shifts
        straight = any(torch.equal(window, result) for window in windows)
        mirrored = any(torch.equal(window.flip(-1), result) for window in windows)
        assert straight or mirrored
        flipped += mirrored
    assert 10 < flipped < 40
    again = augmented(images, generator(0, "augment"))
    assert torch.equal(out, again)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"batch": -1}, "batch must be at least 0, not -1"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"rate": float("nan")}, "rate must be above 0"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0"),
        ({"weight_decay": float("nan")}, "weight_decay must be at least 0 and finite"),
        ({"augment": "crop-flop"}, "did you mean 'crop-flip'"),
    ],
)
def test_ranges(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        LocalTraining(**options)
