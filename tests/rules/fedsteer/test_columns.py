"""The subspace keeps what it knows when columns change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, make_rule
from fedsteer.rules.fedsteer import FedSteerMemory
from fedsteer.rules.fedsteer import coordinates as module
from fedsteer.rules.fedsteer.columns import Columns, Geometry
from fedsteer.rules.fedsteer.coordinates import Coordinates
from fedsteer.rules.fedsteer.ridge import pseudo_inverse
from fedsteer.steering.checks import check_round
from fedsteer.steering.clients import enrol_population
from fedsteer.steering.probability import Sampled

DIM, K, N = 15, 3, 8


def vacant(
    owners: list[Any],
    magnitude: str = "fixed",
    basis: str = "unit",
    cache: str | None = None,
) -> FedSteerMemory:
    return FedSteerMemory(
        columns=Columns.vacant(owners, basis=basis, magnitude=magnitude, cache=cache),
        coordinates=Coordinates.zero(size=len(owners), members=0),
    )


def renewed(
    space: FedSteerMemory,
    updates: Any,
    refreshed: Any = (),
    installed: Any = (),
) -> None:
    """One round in which all `updates` are in hand, as the rule would hand it over."""
    count = len(updates)
    people = enrol_population(updates.shape[1], np.ones(count), Sampled(1.0), None)
    round = Round(number=1, clients=list(range(count)), updates=updates)
    checked = check_round(round, updates.shape[1])
    active, _ = people.activate(checked, uses_probabilities=True, max_weight=None)
    assert active is not None
    everybody = np.arange(count)
    result = space.columns.sweep(active, everybody, np.zeros(K), ridge=0.5)
    names = {position: name for _, position, name in installed}
    called = replace(active.round, clients=[names.get(i, i) for i in range(count)])
    active, takeovers = replace(active, round=called), [(c, i) for c, i, _ in installed]
    change = space.columns.renew(
        result, active, refreshed=refreshed, takeovers=takeovers, gram_of=everybody
    )
    if change is not None:
        space.coordinates.change_basis(change)


def filled(draw: Any, magnitude: str = "fixed", basis: str = "unit") -> FedSteerMemory:
    space = vacant([None] * K, magnitude, basis)
    columns = draw.standard_normal((K, DIM)) * draw.uniform(0.5, 3, (K, 1))
    renewed(space, columns, installed=[(j, j, f"first-{j}") for j in range(K)])
    coordinates = draw.standard_normal((N, K))
    space.coordinates.write(np.arange(N), coordinates)
    space.coordinates.sum_anew(np.arange(1.0, N + 1)[None])
    return space


def check_gram(space: FedSteerMemory) -> None:
    columns = space.columns
    np.testing.assert_allclose(columns.gram, columns.rows @ columns.rows.T, atol=1e-10)  # type: ignore[operator]


def estimates(space: FedSteerMemory) -> Any:
    return space.columns.estimates(space.coordinates.read(np.arange(N)), np.zeros((0, DIM)))


@pytest.mark.parametrize("magnitude", ["fixed", "follow"])
def test_filling_vacant_columns_sets_owners_and_gram(magnitude: str) -> None:
    space = filled(np.random.default_rng(0), magnitude)
    assert space.columns.owners == ["first-0", "first-1", "first-2"]
    assert not len(space.coordinates.maps)
    check_gram(space)


@pytest.mark.parametrize("magnitude", ["fixed", "follow"])
@pytest.mark.parametrize("basis", ["unit", "mean"])
def test_a_change_of_basis_keeps_estimates_inside_the_common_span(
    magnitude: str, basis: str
) -> None:
    """The new column is in the old span, so both bases span the same and nothing may move."""
    if (magnitude, basis) == ("follow", "mean"):
        pytest.skip("not offered")
    draw = np.random.default_rng(1)
    space = filled(draw, magnitude, basis)
    before = estimates(space)
    mixed = draw.uniform(1, 2, (1, K)) @ space.columns.rows
    renewed(space, mixed, installed=[(1, 0, "newcomer")])
    np.testing.assert_allclose(estimates(space), before, rtol=0, atol=1e-10)
    assert space.columns.owners[1] == "newcomer" and len(space.coordinates.maps) == 1
    np.testing.assert_allclose(
        space.columns.gram, space.columns.rows @ space.columns.rows.T, atol=1e-10
    )


def test_only_what_lies_in_both_spans_is_kept_elsewhere() -> None:
    """An estimate in the span of the columns that stay is unchanged; others are projected."""
    draw = np.random.default_rng(2)
    space = filled(draw)
    coordinates = space.coordinates.read(np.arange(N))
    coordinates[:4, 2] = 0.0
    space.coordinates.write(np.arange(N), coordinates)
    before, old = estimates(space), space.columns.rows.copy()
    renewed(space, draw.standard_normal((1, DIM)), installed=[(2, 0, "newcomer")])
    np.testing.assert_allclose(estimates(space)[:4], before[:4], rtol=0, atol=1e-10)
    onto = np.linalg.pinv(space.columns.rows) @ space.columns.rows
    np.testing.assert_allclose(estimates(space), before @ onto, rtol=0, atol=1e-10)
    assert not np.allclose(space.columns.rows, old)


def test_a_swap_maps_from_the_refreshed_columns() -> None:
    """Coordinates refer to the columns this round ends with, before the swap."""
    draw = np.random.default_rng(3)
    space = filled(draw)
    other = filled(np.random.default_rng(3))
    updates = draw.standard_normal((2, DIM))
    renewed(other, updates[:1], refreshed=[(0, 0)])
    steered = estimates(other)
    renewed(space, updates, refreshed=[(0, 0)], installed=[(2, 1, "newcomer")])
    onto = np.linalg.pinv(space.columns.rows) @ space.columns.rows
    np.testing.assert_allclose(estimates(space), steered @ onto, rtol=0, atol=1e-10)


@pytest.mark.parametrize("magnitude", ["fixed", "follow"])
def test_lazy_maps_equal_eager_mapping(magnitude: str) -> None:
    """More swaps than are kept pending; clients are read and written at different times."""
    swaps = 2 * module.MOST_MAPS + 7
    draw = np.random.default_rng(4)
    space = filled(draw, magnitude)
    kept = space.coordinates
    eager = kept.read(np.arange(N))
    sizes = np.arange(1, N + 1)

    def scaled() -> Any:
        columns = space.columns.rows.T
        return columns / np.linalg.norm(columns, axis=0) if magnitude == "fixed" else columns

    for number in range(swaps):
        before = scaled().copy()
        column = int(draw.integers(K))
        # Close to what it replaces, so that 135 projections do not shrink everything to nothing.
        update = space.columns.rows[column : column + 1] + 0.1 * draw.standard_normal((1, DIM))
        renewed(space, update, installed=[(column, 0, f"swap-{number}")])
        after = scaled()
        eager = eager @ (pseudo_inverse(after.T @ after) @ after.T @ before).T
        if number % 10 == 0:
            slots = draw.choice(N, 2, replace=False)
            np.testing.assert_allclose(
                space.coordinates.read(slots), eager[slots], rtol=0, atol=1e-9
            )
            eager[slots] = draw.standard_normal((2, K))
            weights = sizes[None, slots]
            space.coordinates.replace(
                slots,
                old=space.coordinates.read(slots),
                new=eager[slots],
                old_weights=weights,
                weights=weights,
            )
        assert len(space.coordinates.maps) < module.MOST_MAPS
    assert np.abs(eager).max() > 0.1
    np.testing.assert_allclose(space.coordinates.read(np.arange(N)), eager, rtol=0, atol=1e-9)
    np.testing.assert_allclose(space.coordinates.sums[0], sizes @ eager, rtol=0, atol=1e-8)


def test_a_newcomer_after_a_swap_starts_at_zero() -> None:
    draw = np.random.default_rng(5)
    space = filled(draw)
    renewed(space, draw.standard_normal((1, DIM)), installed=[(0, 0, "newcomer")])
    assert not space.coordinates.read(np.array([N, 1000])).any()
    space.coordinates.write(np.array([N + 20]), np.ones((1, K)))
    np.testing.assert_array_equal(space.coordinates.read(np.array([N + 20])), np.ones((1, K)))
    assert not space.coordinates.read(np.array([N + 3])).any()


@pytest.mark.parametrize("keep_owner", [True, False])
def test_vacate(keep_owner: bool) -> None:
    draw = np.random.default_rng(6)
    space = filled(draw)
    coordinates, total = space.coordinates.read(np.arange(N)), space.coordinates.sums[0].copy()
    space.coordinates.change_basis(space.columns.vacate(1, keep_owner=keep_owner))
    assert space.columns.owners[1] == ("first-1" if keep_owner else None)
    assert space.columns.geometry.present.tolist() == [1.0, 0.0, 1.0]
    assert (
        not space.columns.rows[1].any()
        and not space.columns.gram[1].any()
        and not space.columns.gram[:, 1].any()
    )
    coordinates[:, 1] = total[1] = 0.0
    np.testing.assert_array_equal(space.coordinates.read(np.arange(N)), coordinates)
    np.testing.assert_array_equal(space.coordinates.sums[0], total)
    # No client has a coordinate on the next owner's column.
    renewed(space, draw.standard_normal((1, DIM)), installed=[(1, 0, "next")])
    np.testing.assert_allclose(
        space.coordinates.read(np.arange(N)), coordinates, rtol=0, atol=1e-12
    )


def test_vacating_before_anything_was_seen() -> None:
    space = vacant([4, 5])
    space.coordinates.change_basis(space.columns.vacate(0, keep_owner=True))
    assert space.columns.owners == [4, 5] and space.columns.rows is None
    assert not space.columns.estimates(np.ones((2, 2)), np.zeros((0, DIM), np.float32)).any()


CACHES = [("float16", np), ("float16", torch), ("bfloat16", torch)]


@pytest.mark.parametrize(("cache", "library"), CACHES)
def test_low_precision_cache_keeps_the_gram_of_the_rounded_columns(
    cache: str, library: Any
) -> None:
    draw = np.random.default_rng(7)

    def beside(values: Any) -> Any:
        return np.float32(values) if library is np else torch.tensor(values, dtype=torch.float32)

    space = vacant([0, 1, None], cache=cache)
    for number in range(6):
        updates = beside(draw.standard_normal((3, DIM)))
        installed = [(2, 2, f"client-{number}")] if number % 2 else []
        renewed(space, updates, [(number % 2, 0)], installed)
        assert str(space.columns.rows.dtype).removeprefix("torch.") == cache
        rounded = space.columns.stretch[:, None] * np.array(space.columns.rows.tolist(), np.float64)
        np.testing.assert_allclose(space.columns.gram, rounded @ rounded.T, rtol=0, atol=1e-12)
        # The difference to the exact columns is far above that tolerance.
        exact = np.array(updates[0].tolist(), np.float64)
        assert abs(exact @ exact - space.columns.gram[number % 2, number % 2]) > 1e-9


@pytest.mark.parametrize(("cache", "library"), CACHES)
def test_loaded_columns_are_rounded_too(cache: str, library: Any) -> None:
    draw = np.random.default_rng(8)
    rows = draw.standard_normal((9, DIM))
    given = rows.astype(np.float32) if library is np else torch.tensor(rows, dtype=torch.float32)
    space = vacant([7, 2, 4], cache=cache)
    space.columns.load(given, np.array([7, 2, 4]), 1)
    rounded = space.columns.stretch[:, None] * np.array(space.columns.rows.tolist(), np.float64)
    np.testing.assert_allclose(rounded, rows[[7, 2, 4]], rtol=1e-2)
    np.testing.assert_allclose(space.columns.gram, rounded @ rounded.T, rtol=0, atol=1e-12)


def test_scales() -> None:
    space = filled(np.random.default_rng(9))
    lengths = np.linalg.norm(space.columns.rows, axis=1)
    np.testing.assert_allclose(space.columns.geometry.scale, 1 / lengths)
    np.testing.assert_allclose(space.columns.geometry.stored, 1 / lengths)
    np.testing.assert_allclose(np.diag(space.columns.geometry.scaled), 1.0)
    follow = filled(np.random.default_rng(9), magnitude="follow")
    np.testing.assert_array_equal(follow.columns.geometry.stored, np.ones(K))
    mean = filled(np.random.default_rng(9), basis="mean")
    np.testing.assert_allclose(mean.columns.geometry.scale, 1 / K)


@pytest.mark.parametrize("cache", [None, "float16"])
def test_what_is_kept_of_the_columns_follows_every_change(cache: str | None) -> None:
    """After each way a column can change, the kept geometry is that of the Gram matrix."""
    draw = np.random.default_rng(11)
    space = vacant([None] * K, cache=cache)

    def check() -> None:
        afresh = Geometry(space.columns.gram.copy(), basis="unit", magnitude="fixed")
        np.testing.assert_array_equal(space.columns.geometry.scaled, afresh.scaled)

    check()
    for change in ("install", "refresh", "swap", "vacate", "install", "load"):
        before = space.columns.gram.copy()
        rows = draw.standard_normal((K, DIM)).astype(np.float32)
        if change == "vacate":
            space.coordinates.change_basis(space.columns.vacate(1, keep_owner=False))
        elif change == "load":
            space.columns.load(rows, np.arange(K), 1)
        else:
            columns = [(j, j) for j in range(K)] if change == "install" else [(2, 0)]
            installed = [(c, i, f"{change}-{c}") for c, i in columns if change != "refresh"]
            renewed(space, rows, columns if change == "refresh" else [], installed)
        assert not np.array_equal(space.columns.gram, before)
        check()


@pytest.mark.parametrize("size", [1e-7, 1e6])
@pytest.mark.parametrize(("cache", "library"), CACHES)
def test_two_bytes_hold_updates_of_any_size(cache: str, library: Any, size: float) -> None:
    """float16 ends at 65504 and begins at 6e-8; the columns must neither overflow nor vanish."""
    draw = np.random.default_rng(8)
    values = size * draw.standard_normal((2, DIM))
    updates = np.float32(values) if library is np else torch.tensor(values, dtype=torch.float32)
    rule = make_rule("fedsteer", core_set=[0], ridge=0.0, cache=cache)
    state = rule.init(DIM, [1.0, 1.0])
    for number in (1, 2, 3):
        step = rule.step(
            state, Round(number=number, clients=[0, 1], updates=updates, probabilities=[0.5, 0.5])
        )
        state = step.state
    assert np.isfinite(step.diagnostics.delta_norm)
    # Client 0 is the basis: its estimate is its update, to the precision of the cache.
    assert step.diagnostics.relative_errors[0] < 1e-4
