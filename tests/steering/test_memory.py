"""The running sum of N x d rules stays the sum of what is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, make_rule
from fedsteer.steering.memory import RowStore


def test_a_huge_update_that_is_no_longer_trusted_leaves_no_trace() -> None:
    """beta falls to 0, so what replaces the huge one is short, though its update is not."""
    rule = make_rule("fedstale", adaptive=True)
    state = rule.init(4, [1.0] * 3)
    for number, (client, update) in enumerate(
        [(1, [2, 0, 0, 0]), (2, [0, 2, 0, 0]), (0, [1e18, 1e18, 0, 0]), (0, [-1e15, -1e15, 0, 0])],
        start=1,
    ):
        updates = np.array([update], np.float64)
        state = rule.step(
            state, Round(number=number, clients=[client], updates=updates, probabilities=[0.5])
        ).state
    own = state.memory.own  # type: ignore[attr-defined]
    np.testing.assert_allclose(own.base, [1, 1, 0, 0], atol=1e-12)  # beta is .5 at first


@pytest.mark.parametrize("slots", [[4, 1], [1, 2, 3], [3, 1, 2], [1, 2, 0]], ids=str)
@pytest.mark.parametrize("later", ["float16", "float32", "float64"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_rows_are_copied_in_the_type_of_the_first_update(
    library: str, later: str, slots: list[int]
) -> None:
    def array(values: Any, dtype: str) -> Any:
        values = np.array(values, dtype)
        return torch.from_numpy(values) if library == "torch" else values

    draw = np.random.default_rng(3)
    values = draw.standard_normal((len(slots), 9)).astype("float16")
    updates = array(values, later)
    store = RowStore()
    store.write(np.array([0]), array(np.ones((1, 9)), "float32"), expected=5)
    store.write(np.array(slots), updates, expected=5)
    store.write(np.array([], np.int64), updates[:0], expected=5)
    updates[:] = 0  # a copy, no view
    expected = np.zeros((5, 9))
    expected[0] = 1
    expected[slots] = values
    assert "float32" in str(store.rows.dtype)
    np.testing.assert_array_equal(np.asarray(store.rows), expected)
