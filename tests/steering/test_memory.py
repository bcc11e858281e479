"""The running sum of N x d rules stays the sum of what is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, make_rule


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


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_sum_does_not_drift_when_updates_become_wider(library: str) -> None:
    """float16 first, then float32: what is added is what will be taken out again."""
    rule, draw = make_rule("fedvarp"), np.random.default_rng(0)
    state = rule.init(20, [1.0] * 5)
    for number in range(1, 200):
        drawn: Any = draw.standard_normal((2, 20)).astype("float16" if number < 3 else "float32")
        updates = torch.from_numpy(drawn) if library == "torch" else drawn
        clients = draw.choice(5, 2, replace=False).tolist()
        state = rule.step(
            state, Round(number=number, clients=clients, updates=updates, probabilities=[0.5, 0.5])
        ).state
    own = state.memory.own  # type: ignore[attr-defined]
    stored = np.asarray(own.store.rows, np.float64).sum(axis=0)
    np.testing.assert_allclose(np.asarray(own.base), stored, atol=1e-9)
