"""The core-set search against brute force: every swap, every search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer.rules.fedsteer.search import Snapshot, objective, search, swap_objectives
from tests.reference.coreset import brute_force_swaps, naive_search
from tests.reference.coreset import objective as naive_objective

SHAPES = [(4, 1, 6), (6, 2, 10), (9, 3, 12), (12, 5, 20), (7, 6, 15)]  # N, k, d
RIDGES = [0.5, 1e-3, 0.0]


def snapshot_of(updates: Any, weights: Any, *, unit_targets: bool = False) -> Snapshot:
    return Snapshot.of(updates @ updates.T, weights, unit_targets=unit_targets)


def made(shape: tuple[int, int, int], seed: int = 0) -> tuple[Any, Any, Any]:
    """Updates of very different lengths, weights, and a core set in no order."""
    count, size, dim = shape
    draw = np.random.default_rng(seed)
    updates = draw.standard_normal((count, dim)) * draw.uniform(0.1, 10, (count, 1))
    return updates, draw.random(count), draw.choice(count, size, replace=False)


def assert_swaps_equal(updates: Any, weights: Any, core: Any, ridge: float) -> None:
    snapshot = snapshot_of(updates, weights)
    outsiders = np.setdiff1d(snapshot.usable, core)
    found = swap_objectives(snapshot, core, outsiders, ridge, snapshot.scatter(core))
    expected = brute_force_swaps(updates, weights, core.tolist(), ridge)
    assert len(expected) == found.size
    scale = float(weights @ np.sum(updates**2, axis=1))
    for row, out in enumerate(core.tolist()):
        for column, new in enumerate(outsiders.tolist()):
            assert found[row, column] == pytest.approx(expected[out, new], abs=1e-9 * scale)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_swap_equals_brute_force(shape: Any, ridge: float, seed: int) -> None:
    assert_swaps_equal(*made(shape, seed), ridge)


@pytest.mark.parametrize("ridge", [0.5, 1e-3])
def test_swaps_with_zeros_and_duplicates_among_the_clients(ridge: float) -> None:
    """Zero updates (one of them in the core set), equal and opposite ones, multiples."""
    updates, weights, _ = made((10, 4, 12), 2)
    updates[1] = updates[6] = 0.0
    updates[3] = updates[7]
    updates[8] = -2.5 * updates[5]
    for core in ([0, 3, 7, 5], [1, 2, 3, 8], [5, 8, 3, 7], [6, 1, 0, 2]):
        assert_swaps_equal(updates, weights, np.array(core), ridge)


def test_at_ridge_zero_a_column_the_set_already_spans_gains_nothing() -> None:
    updates, weights, _ = made((8, 3, 12), 3)
    updates[7] = 2 * updates[0] - updates[1]  # inside the span of columns 0 and 1
    updates[6] = -updates[0]
    core = np.array([0, 1, 2])
    snapshot = snapshot_of(updates, weights)
    outsiders = np.array([6, 7])
    found = swap_objectives(snapshot, core, outsiders, 0.0, snapshot.scatter(core))
    expected = brute_force_swaps(updates, weights, core.tolist(), 0.0, [6, 7])
    for row in range(3):
        for column, new in enumerate((6, 7)):
            assert found[row, column] == pytest.approx(expected[row, new], rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ridge", [*RIDGES, 1e-20])
def test_objective_equals_the_naive_one(shape: Any, ridge: float) -> None:
    updates, weights, core = made(shape, 4)
    expected = naive_objective(updates, weights, core.tolist(), ridge)
    found = objective(snapshot_of(updates, weights), core, ridge)
    scale = float(weights @ np.sum(updates**2, axis=1))
    assert found == pytest.approx(expected, abs=1e-10 * scale)


@pytest.mark.parametrize("ridge", [0.0, 1e-20, 1e-3])
def test_objective_of_dependent_columns(ridge: float) -> None:
    updates, weights, _ = made((6, 3, 10), 5)
    updates[2] = updates[4]
    updates[1] = 0.0
    core = np.array([2, 4, 1])
    expected = naive_objective(updates, weights, core.tolist(), 0.0 if ridge < 1e-12 else ridge)
    assert objective(snapshot_of(updates, weights), core, ridge) == pytest.approx(expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("max_swaps", [0, 1, 5])
def test_search_equals_naive_search(shape: Any, ridge: float, max_swaps: int) -> None:
    for seed in range(4):
        updates, weights, core = made(shape, seed)
        found = search(snapshot_of(updates, weights), core, ridge, max_swaps)
        expected = naive_search(updates, weights, core.tolist(), ridge, max_swaps)
        assert found.tolist() == expected


def test_search_swaps_something_at_all() -> None:
    swapped = 0
    for seed in range(4):
        updates, weights, core = made((12, 5, 20), seed)
        swapped += int((search(snapshot_of(updates, weights), core, 0.5, 5) != core).sum())
    assert swapped > 4


@pytest.mark.parametrize("ridge", [0.5, 1e-6, 0.0])
def test_search_never_raises_the_objective(ridge: float) -> None:
    """Also where updates are zero, equal, or nearly dependent."""
    for seed in range(10):
        draw = np.random.default_rng(seed)
        updates = draw.standard_normal((14, 3)) @ draw.standard_normal((3, 20))
        updates += 1e-5 * draw.standard_normal(updates.shape)
        updates[2] = 0.0
        updates[3] = updates[4]
        weights = draw.random(14)
        snapshot = snapshot_of(updates, weights)
        core = draw.choice(14, 5, replace=False)
        values = [objective(snapshot, core, ridge)]
        for swaps in range(1, 6):
            values.append(objective(snapshot, search(snapshot, core, ridge, swaps), ridge))
        assert np.isfinite(values).all()
        assert (np.diff(values) <= 1e-12 * snapshot.energy).all()


def test_search_leaves_its_start_alone_and_keeps_positions() -> None:
    updates, weights, core = made((12, 5, 20), 1)
    kept = core.copy()
    found = search(snapshot_of(updates, weights), core, 0.5, 1)
    assert (core == kept).all()
    assert (found != core).sum() == 1
    assert len(set(found.tolist())) == 5


def test_only_candidates_come_in() -> None:
    for seed in range(6):
        updates, weights, core = made((12, 4, 20), seed)
        draw = np.random.default_rng(seed)
        candidates = draw.choice(12, 3, replace=False)
        found = search(snapshot_of(updates, weights), core, 0.5, 5, candidates)
        assert set(found.tolist()) <= set(core.tolist()) | set(candidates.tolist())
        expected = naive_search(
            updates, weights, core.tolist(), 0.5, 5, sorted(candidates.tolist())
        )
        assert found.tolist() == expected


def test_zero_updates_are_no_candidates() -> None:
    updates, weights, _ = made((6, 2, 10), 0)
    updates[[0, 1, 2]] = 0.0
    updates[2] = 1e-14 * updates[3]  # rounding noise counts as zero
    snapshot = snapshot_of(updates, weights)
    assert snapshot.usable.tolist() == [3, 4, 5]
    found = search(snapshot, np.array([0, 1]), 0.5, 5)
    assert set(found.tolist()) <= {3, 4, 5}
    assert search(snapshot, np.array([3, 4, 5]), 0.5, 5, np.array([0, 1])).tolist() == [3, 4, 5]


def test_nothing_to_search() -> None:
    nothing = snapshot_of(np.zeros((3, 4)), np.ones(3))
    assert not len(nothing.usable)
    assert search(nothing, np.array([], np.int64), 0.5, 5).tolist() == []
    assert search(nothing, np.array([1]), 0.5, 5).tolist() == [1]
    assert Snapshot.of(np.zeros((0, 0)), np.zeros(0)).energy == 0


@pytest.mark.parametrize("ridge", [0.5, 1e-3])
def test_unit_targets_are_updates_of_length_one(ridge: float) -> None:
    updates, weights, core = made((10, 3, 14), 6)
    updates[4] = 0.0
    lengths = np.linalg.norm(updates, axis=1, keepdims=True)
    unit = updates / np.where(lengths > 0, lengths, 1.0)
    normalised = snapshot_of(updates, weights, unit_targets=True)
    plain = snapshot_of(unit, weights)
    assert normalised.energy == pytest.approx(plain.energy)
    assert objective(normalised, core, ridge) == pytest.approx(
        naive_objective(unit, weights, core.tolist(), ridge)
    )
    found = search(normalised, core, ridge, 5)
    assert found.tolist() == naive_search(unit, weights, core.tolist(), ridge, 5)


def test_dependent_columns_are_replaced_without_a_ridge() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        updates = np.hstack([draw.normal(size=(12, 3)), np.zeros((12, 1))])
        updates[10:] = draw.normal(size=(2, 4))
        snapshot = Snapshot.of(updates @ updates.T, np.full(12, 1 / 12))
        first = draw.choice(10, 5, replace=False)  # five columns of rank three
        swaps = [
            [*np.delete(first, r), new] for r in range(5) for new in range(12) if new not in first
        ]
        best = min(objective(snapshot, np.array(core), 0.0) for core in swaps)
        found = search(snapshot, first, 0.0, 5)
        assert objective(snapshot, found, 0.0) <= best + 1e-9
