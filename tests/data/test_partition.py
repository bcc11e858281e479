from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsteer.data import (
    PARTITIONS,
    Dirichlet,
    Iid,
    LabelGroups,
    Partition,
    Shards,
    load,
)
from fedsteer.errors import ConfigurationError
from fedsteer.participation import GroupsOptions

EMNIST_LIKE = np.repeat(np.arange(47), 786)
DIGITS_LIKE = np.arange(900) % 10


def label_groups(labels: np.ndarray, *, seed: int, **options: Any) -> Partition:
    """By the paper's numbers if no others are given."""
    return LabelGroups(**{"points": 100} | options).divide(labels, seed)


def dirichlet(labels: np.ndarray, clients: int, *, seed: int, **options: Any) -> Partition:
    return Dirichlet(clients=clients, **options).divide(labels, seed)


def shards(labels: np.ndarray, clients: int, *, seed: int, **options: Any) -> Partition:
    return Shards(clients=clients, **options).divide(labels, seed)


def iid(labels: np.ndarray, clients: int, *, seed: int, **options: Any) -> Partition:
    return Iid(clients=clients, **options).divide(labels, seed)


def labels_held(partition: Partition) -> list[np.ndarray]:
    """The labels of each client's points."""
    return [np.flatnonzero(row) for row in partition.holds]


def assert_sound(partition: Partition, labels: np.ndarray, *, disjoint: bool) -> None:
    everything = np.concatenate(partition.indices)
    assert everything.min() >= 0 and everything.max() < len(labels)
    for own in partition.indices:
        assert len(np.unique(own)) == len(own)
    if disjoint:
        assert len(np.unique(everything)) == len(everything)
    table = partition.holds
    assert table.shape == (partition.clients, labels.max() + 1)
    np.testing.assert_array_equal(table.sum(axis=1), partition.sizes)
    for row, own in zip(table, partition.indices, strict=True):
        np.testing.assert_array_equal(np.flatnonzero(row), np.unique(labels[own]))


def same(one: Partition, other: Partition) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.indices, other.indices, strict=True))


@pytest.mark.parametrize(("gamma", "common", "rare"), [(0.9, 55, 500), (0.7, 71, 166)])
def test_the_papers_numbers(gamma: float, common: int, rare: int) -> None:
    partition = label_groups(EMNIST_LIKE, gamma=gamma, seed=0)
    assert_sound(partition, EMNIST_LIKE, disjoint=True)
    assert set(partition.groups) == {"common", "rare"}
    assert (partition.groups == "common").sum() == round(100 * gamma)
    table = partition.holds
    in_common = partition.groups == "common"
    assert set(partition.sizes[in_common]) == {common} and set(partition.sizes[~in_common]) == {
        rare
    }
    # 23 of the 47 labels are common; a client's points are spread over its labels evenly.
    assert table[in_common, 23:].sum() == 0 and table[~in_common, :23].sum() == 0
    for part in (table[in_common, :23], table[~in_common, 23:]):
        assert (part.max(axis=1) - part.min(axis=1)).max() <= 1
        assert part.sum(axis=0).max() - part.sum(axis=0).min() <= 1


def test_half_of_the_groups_labels() -> None:
    partition = label_groups(EMNIST_LIKE, points=80, labels_per_client=0.5, seed=0)
    labels = labels_held(partition)
    held = {(str(g), len(own)) for g, own in zip(partition.groups, labels, strict=True)}
    assert held == {("common", 11), ("rare", 12)}
    assert len({tuple(own) for own in labels}) > 50  # drawn for each client


def test_point_counts_survive_floating_point() -> None:
    # 50 / (1 - 0.95) is 999.99... in floating point.
    partition = label_groups(np.arange(60000) % 10, gamma=0.95, seed=0)
    assert partition.sizes.max() == 1000


def test_data_groups_are_independent_of_participation_groups() -> None:
    """With the same seed for both, weak clients are rare no more often than by chance."""
    both = 0
    for seed in range(200):
        weak = GroupsOptions().long_run(100, seed) < 0.1
        rare = label_groups(DIGITS_LIKE, points=8, seed=seed).groups == "rare"
        both += int((weak & rare).sum())
    # 200 hypergeometric draws: mean 5, deviation 1.51 each.
    assert abs(both / 200 - 5) < 4 * 1.51 / 200**0.5


def test_too_few_points_say_the_numbers() -> None:
    with pytest.raises(ConfigurationError, match="90 x 55 = 4950 points, its 5 labels have 450"):
        label_groups(DIGITS_LIKE, seed=0)
    with pytest.raises(
        ConfigurationError, match=r"client \d+ needs \d+ points of its 1 labels, \d+ are left"
    ):
        label_groups(DIGITS_LIKE, points=8, labels_per_client=0.2, seed=0)
    with pytest.raises(ConfigurationError, match="1 x 500 = 500 points"):
        label_groups(DIGITS_LIKE, replace=True, seed=0)


@pytest.mark.parametrize(
    "options",
    [
        {"gamma": 0.0},
        {"gamma": 1.0},
        {"gamma": float("nan")},
        {"clients": 0},
        {"clients": 3, "gamma": 0.1},
        {"points": 1},
        {"labels_per_client": 0.0},
        {"labels_per_client": 1.1},
        {"seed": -1},
    ],
)
def test_label_groups_refuses(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        label_groups(EMNIST_LIKE, **{"seed": 0} | options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "labels",
    [np.array([]), np.zeros(3), np.zeros((2, 2), int), np.array([-1, 1]), np.zeros(9, int)],
)
def test_labels_refused(labels: np.ndarray) -> None:
    with pytest.raises(ConfigurationError, match="labels"):
        label_groups(labels, seed=0)


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(2, 30),
    gamma=st.floats(0.2, 0.95),
    points=st.integers(2, 40),
    share=st.floats(0.1, 1.0),
    replace=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_label_groups_invariants(
    clients: int, gamma: float, points: int, share: float, replace: bool, seed: int
) -> None:
    labels = np.random.default_rng(0).integers(0, 7, 3000)
    assume(0 < round(gamma * clients) < clients)
    options = dict(
        clients=clients, gamma=gamma, points=points, labels_per_client=share, replace=replace
    )
    try:
        partition = label_groups(labels, seed=seed, **options)  # type: ignore[arg-type]
    except ConfigurationError:
        assume(False)
    assert_sound(partition, labels, disjoint=not replace)
    for held, rare in zip(labels_held(partition), partition.groups == "rare", strict=True):
        assert (held >= 3).all() if rare else (held < 3).all()
    assert same(partition, label_groups(labels, seed=seed, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"labels_per_client": 0.5}, {"replace": True}])
def test_after_a_swap_the_groups_hold_each_others_labels(options: dict[str, Any]) -> None:
    before = label_groups(EMNIST_LIKE, seed=0, **options)
    swapped = label_groups(EMNIST_LIKE, seed=0, swap_after=75, **options)
    later = swapped.later
    assert before.later is None and same(before, swapped) and later is not None
    assert_sound(later, EMNIST_LIKE, disjoint=not options.get("replace"))
    assert later.groups.tolist() == swapped.groups.tolist()
    assert swapped.at(75) is swapped and swapped.at(76) is later and before.at(76) is before
    assert later.sizes.tolist() == swapped.sizes.tolist()
    for held, rare in zip(labels_held(later), later.groups == "rare", strict=True):
        assert (held < 23).all() if rare else (held >= 23).all()
    again = label_groups(EMNIST_LIKE, seed=0, swap_after=9, **options)
    assert again.later is not None and same(later, again.later), "a function of the seed alone"


def test_a_swap_into_too_few_points_is_refused() -> None:
    labels = np.repeat(np.arange(4), [50, 50, 400, 400])
    options = {"clients": 10, "points": 40, "replace": True, "seed": 0}
    assert label_groups(labels, **options).sizes.max() == 200
    with pytest.raises(ConfigurationError, match=r"the rare group .* its 2 labels have 100;"):
        label_groups(labels, swap_after=3, **options)


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 40),
    alpha=st.floats(0.01, 100),
    seed=st.integers(0, 2**31),
)
def test_dirichlet_invariants(clients: int, alpha: float, seed: int) -> None:
    labels = np.random.default_rng(0).integers(0, 5, 400)
    partition = dirichlet(labels, clients, alpha=alpha, seed=seed)
    assert_sound(partition, labels, disjoint=True)
    assert partition.sizes.sum() == 400 and partition.sizes.min() >= 1
    assert same(partition, dirichlet(labels, clients, alpha=alpha, seed=seed))


def test_alpha_is_a_dial() -> None:
    def largest_share(alpha: float, **options: int | bool) -> float:
        partition = dirichlet(EMNIST_LIKE % 10, 50, alpha=alpha, seed=0, **options)
        table = partition.holds
        return float((table.max(axis=1) / table.sum(axis=1)).mean())

    for options in ({}, {"points": 60, "replace": True}):
        assert largest_share(0.01, **options) > 0.8
        assert largest_share(1000, **options) < 0.25


def test_no_place_among_the_clients_gains_by_rounding() -> None:
    labels, tries = DIGITS_LIKE, 200
    held = np.zeros(30)
    for seed in range(tries):
        held += [len(own) for own in labels_held(dirichlet(labels, 30, alpha=0.05, seed=seed))]
    mean, spread = held / tries, held.std() / tries
    assert abs(mean[0] - mean.mean()) < 4 * spread and abs(mean[-1] - mean.mean()) < 4 * spread
    assert spread < 0.15


def test_shared_dirichlet_takes_from_other_labels_what_one_cannot_give() -> None:
    labels = np.arange(40) % 4
    partition = dirichlet(labels, 20, alpha=0.01, points=35, seed=0, replace=True)
    assert_sound(partition, labels, disjoint=False)
    assert set(partition.sizes) == {35}


@settings(max_examples=40, deadline=None)
@given(clients=st.integers(1, 30), each=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_shards_invariants(clients: int, each: int, seed: int) -> None:
    labels = np.random.default_rng(0).integers(0, 5, 400)
    partition = shards(labels, clients, shards_per_client=each, seed=seed)
    assert_sound(partition, labels, disjoint=True)
    assert partition.sizes.sum() == 400
    limited = shards(labels, clients, shards_per_client=each, points=each * 2, seed=seed)
    assert_sound(limited, labels, disjoint=True)
    assert set(limited.sizes) == {each * 2}
    shared = shards(
        labels, clients, shards_per_client=each, points=each * 5, seed=seed, replace=True
    )
    assert_sound(shared, labels, disjoint=False)
    assert set(shared.sizes) == {each * 5}


def test_shards_hold_few_labels() -> None:
    partition = shards(np.arange(6000) % 10, 100, seed=0)
    assert max(len(held) for held in labels_held(partition)) <= 2


@settings(max_examples=30, deadline=None)
@given(clients=st.integers(1, 50), points=st.integers(1, 8), seed=st.integers(0, 2**31))
def test_iid_invariants(clients: int, points: int, seed: int) -> None:
    labels = np.random.default_rng(0).integers(0, 5, 400)
    everything = iid(labels, clients, seed=seed)
    assert_sound(everything, labels, disjoint=True)
    assert everything.sizes.sum() == 400 and np.ptp(everything.sizes) <= 1
    for replace in (False, True):
        partition = iid(labels, clients, points=points, seed=seed, replace=replace)
        assert_sound(partition, labels, disjoint=not replace)
        assert set(partition.sizes) == {points}


@pytest.mark.parametrize(
    "refused",
    [
        lambda: dirichlet(DIGITS_LIKE, 10, alpha=0.0, seed=0),
        lambda: dirichlet(DIGITS_LIKE, 10, alpha=float("nan"), seed=0),
        lambda: dirichlet(DIGITS_LIKE, 10, alpha=1e308, seed=0),
        lambda: dirichlet(DIGITS_LIKE, 901, seed=0),
        lambda: dirichlet(DIGITS_LIKE, 10, points=5, seed=0),
        lambda: dirichlet(DIGITS_LIKE, 10, replace=True, seed=0),
        lambda: dirichlet(DIGITS_LIKE, 10, points=901, replace=True, seed=0),
        lambda: shards(DIGITS_LIKE, 10, shards_per_client=0, seed=0),
        lambda: shards(DIGITS_LIKE, 451, seed=0),
        lambda: shards(DIGITS_LIKE, 10, points=7, seed=0),
        lambda: shards(DIGITS_LIKE, 10, points=92, seed=0),
        lambda: shards(DIGITS_LIKE, 10, replace=True, seed=0),
        lambda: iid(DIGITS_LIKE, 901, seed=0),
        lambda: iid(DIGITS_LIKE, 10, points=91, seed=0),
        lambda: iid(DIGITS_LIKE, 10, points=0, seed=0),
        lambda: iid(DIGITS_LIKE, 10, replace=True, seed=0),
        lambda: iid(DIGITS_LIKE, 10, seed=-1),
    ],
)
def test_refused_in_one_line(refused: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        refused()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", PARTITIONS)
def test_every_kind_divides_by_its_options(kind: str) -> None:
    options = PARTITIONS[kind](clients=6)
    assert options.kind == kind and PARTITIONS[kind].__doc__
    assert all(entry.metadata["help"] for entry in fields(options))
    partition = options.divide(DIGITS_LIKE, 0)
    assert partition.clients == 6
    assert_sound(partition, DIGITS_LIKE, disjoint=True)
    assert same(partition, options.divide(DIGITS_LIKE, 0))
    assert not same(partition, options.divide(DIGITS_LIKE, 1))
    for labels in partition.label_groups.values():
        assert labels == sorted(labels) and set(labels) < set(range(10))


def test_ten_thousand_clients_share_the_digits() -> None:
    labels = load("digits").train_labels
    began = time.perf_counter()
    partitions = [
        label_groups(labels, clients=10_000, points=20, seed=0, replace=True),
        dirichlet(labels, 10_000, points=20, seed=0, replace=True),
        shards(labels, 10_000, points=20, seed=0, replace=True),
        iid(labels, 10_000, points=20, seed=0, replace=True),
    ]
    assert time.perf_counter() - began < 15  # about 2 s on two cores
    for partition in partitions:
        assert partition.clients == 10_000
        # No label is left out or preferred: a client of 11 points over 5 labels has one odd point.
        share = partition.holds.sum(axis=0) / partition.sizes.sum()
        np.testing.assert_allclose(share, 0.1, atol=0.02)


@pytest.mark.parametrize(("clients", "gamma"), [(10, 0.9), (10, 0.7), (7, 0.5)])
def test_label_groups_without_points_take_what_both_have(clients: int, gamma: float) -> None:
    labels = np.repeat(np.arange(4), [400, 300, 200, 500])
    found = label_groups(labels, clients=clients, gamma=gamma, points=None, seed=0)
    used = np.concatenate(found.indices)
    assert len(used) == len(set(used.tolist()))
    most = round(np.mean([len(own) for own in found.indices]))
    points = int(1.1 * most) + 2
    with pytest.raises(ConfigurationError):
        label_groups(labels, clients=clients, gamma=gamma, points=points, seed=0)
