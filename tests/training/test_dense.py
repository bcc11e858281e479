"""Wide dense networks trained through their clients' own points: equal to the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer.training import (
    LocalTraining,
    Network,
    TrainingData,
    choose_threads,
    make_engine,
    make_network,
)
from fedsteer.training.engines.batched import BatchedEngine
from fedsteer.training.engines.dense import DenseTrainer, GramMatrices, is_wide
from fedsteer.training.layers.known import known_layers
from tests.training.made_data import CLASSES, training_data
from tests.training.test_engines import KINDS, Kind, assert_same, orders_of, trained_by

SHAPE = (1, 20, 20)
NETWORKS = {
    "logistic": ("logistic", {}),
    "two hidden": ("mlp", {"hidden": [9, 7]}),
    "tanh": ("mlp", {"hidden": [6], "activation": "tanh"}),
}
SIZES = {"equal": (9, 9, 9, 9), "about equal": (8, 13, 9, 7, 12, 5)}
PLAIN = ("plain", "starts", "masked", "whole-data", "partial-batches")


def network(name: str = "two hidden", shape: tuple[int, int, int] = SHAPE) -> Network:
    model, options = NETWORKS[name]
    return make_network(model, shape, CLASSES, dict(options))


def batched(data: TrainingData, how: LocalTraining) -> BatchedEngine:
    made = make_engine("batched", network(), data, how)
    assert isinstance(made, BatchedEngine)
    return made


def dense(engine: BatchedEngine) -> DenseTrainer:
    assert engine.dense is not None
    return engine.dense


def is_suited(sizes: tuple[int, ...], kind: Kind) -> bool:
    data = training_data(SHAPE, sizes)
    orders = orders_of(kind, data, network().initial(1))
    return dense(batched(data, kind.how)).suits(orders)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_equal_to_sequential(sizes: tuple[int, ...], name: str, kind: Kind) -> None:
    data = training_data(SHAPE, sizes)
    ours = trained_by("batched", network(name), data, kind)
    assert_same(ours, trained_by("sequential", network(name), data, kind), tolerance=1e-11)


STORED = {
    "one epoch": Kind.of(shuffle=False, epochs=1),
    "epochs": Kind.of(shuffle=False, epochs=3),
    "small last batch": Kind.of(shuffle=False, batch=5),
    "more than some hold": Kind.of(batch=12),
    "masked": Kind.of(shuffle=False, mask_absent_labels=True),
    "starts": Kind(LocalTraining(epochs=2, batch=4, rate=0.05, shuffle=False), starts=True),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", STORED.values(), ids=STORED.keys())
def test_batches_in_stored_order(sizes: tuple[int, ...], name: str, kind: Kind) -> None:
    """A batch is a slice of the points then, and not all clients have as many batches."""
    data = training_data(SHAPE, sizes)
    ours = trained_by("batched", network(name), data, kind)
    assert_same(ours, trained_by("sequential", network(name), data, kind), tolerance=1e-11)


def test_a_client_counts_only_its_own_steps() -> None:
    data, how = training_data(SHAPE, (13, 8, 5)), KINDS["plain"].how  # 2 epochs of batches of 8
    trained = batched(data, how).train_orders(data.orders(network().initial(1)))
    assert trained.steps.tolist() == [4, 2, 2]


def test_the_matrix_used_least_recently_goes_first() -> None:
    clients = [np.arange(first, first + 3) for first in (0, 3, 6)]
    images = torch.rand((9, 5))
    grams = GramMatrices(most=2 * 9)
    for which in (0, 1, 0, 2):
        own = images[clients[which]]
        torch.testing.assert_close(grams.of(clients[which], own), own @ own.T + 1)
    assert [points[0] for points, _ in grams._kept.values()] == [0, 6]
    assert grams.numbers == 18


@pytest.mark.parametrize("room", [0, 40, 100, 1000])
def test_matrices_of_any_clients_in_any_order(room: int) -> None:
    """Of few and many, alike and not, for the first time, again, or twice at once."""
    images, draw = torch.rand((60, 5)), np.random.default_rng(room)
    clients = [np.sort(draw.choice(60, size, replace=False)) for size in (3, 3, 3, 5, 4, 5, 2)]
    grams = GramMatrices(most=room)
    for _ in range(200):
        cohort = [clients[i] for i in draw.choice(7, draw.integers(1, 8))]
        most = max(map(len, cohort))
        filled = torch.stack([images[np.resize(points, most)] for points in cohort])
        found = grams.stacked(cohort, filled)
        for points, ours in zip(cohort, found, strict=True):
            expected = torch.zeros((most, most))
            expected[: len(points), : len(points)] = images[points] @ images[points].T + 1
            torch.testing.assert_close(ours, expected)
        assert grams.numbers <= room


@pytest.mark.parametrize("kind", KINDS)
def test_plain_steps_suit(kind: str) -> None:
    assert is_suited(SIZES["about equal"], KINDS[kind]) == (kind in PLAIN)


def test_few_points_of_about_equal_number_suit() -> None:
    plain = KINDS["plain"]
    assert not is_suited((30, 2, 2, 2, 2), plain)  # more padding than points
    assert is_suited((60, 60), plain)
    assert not is_suited((62, 62), plain)  # more products than the network has weights


def test_only_wide_dense_networks_on_a_cpu() -> None:
    small = network(shape=(1, 8, 8))
    for made, wide in ((network(), True), (small, False)):
        layers = known_layers(made)
        assert layers is not None
        assert is_wide(layers) == wide
        assert [choose_threads(made, cores) for cores in (1, 2, 8)] == [1, 1, 1]
    pictures = make_network("emnist-cnn", SHAPE, CLASSES, {"channels": [2], "hidden": [3]})
    layers = known_layers(pictures)
    assert layers is not None
    assert not is_wide(layers)


def test_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    data, kind = training_data(SHAPE, SIZES["about equal"]), KINDS["plain"]
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    ours = trained_by("batched", network(), data, kind)
    assert_same(ours, trained_by("sequential", network(), data, kind), tolerance=1e-11)


@pytest.mark.parametrize("kind", [KINDS["plain"], STORED["starts"]], ids=["one", "many"])
@pytest.mark.parametrize("hidden", [[64], [8, 50]], ids=["few", "many"])
def test_in_the_precision_of_experiments(kind: Kind, hidden: list[int]) -> None:
    """In float32, with one model to start from and several, few weights above the first layer
    and many."""
    wide = make_network("mlp", SHAPE, CLASSES, {"hidden": hidden})
    data = training_data(SHAPE, (30, 30, 25))
    orders = orders_of(kind, data, wide.initial(1))
    ours, theirs = (
        make_engine(name, wide, data, kind.how).train_orders(orders).updates
        for name in ("batched", "sequential")
    )
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def bits(trained: Any) -> bytes:
    found: bytes = trained.updates.numpy().tobytes() + trained.losses.tobytes()
    return found


@pytest.mark.parametrize("kind", ["plain", "masked", "momentum"])
@pytest.mark.parametrize(("hidden", "points"), [(64, 90), (5, 20)])
@pytest.mark.parametrize("clients", [1, 2, 3, 8])
def test_threads_change_no_bit(clients: int, hidden: int, points: int, kind: str) -> None:
    """Large enough for products to be shared out among threads."""
    wide = make_network("mlp", (1, 28, 28), CLASSES, {"hidden": [hidden]})
    data = training_data((1, 28, 28), (points,) * clients)
    model, found = wide.initial(1), set()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            engine = make_engine("batched", wide, data, KINDS[kind].how)
            trained = engine.train_orders(data.orders(model))
            found.add(bits(trained))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_losses_of_a_run_that_diverges_are_those_of_other_engines() -> None:
    """Times a rate that large they do not fit into four bytes."""
    data, how = training_data(SHAPE, SIZES["equal"]), LocalTraining(rate=1e25, epochs=1, batch=4)
    plain = network("logistic")
    ours, theirs = (
        make_engine(name, plain, data, how).train_orders(data.orders(plain.initial(1)))
        for name in ("batched", "sequential")
    )
    assert np.isfinite(theirs.losses).all() and theirs.losses.max() > 1e20
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-2)


def test_the_place_of_a_model_in_memory_does_not_matter() -> None:
    data, kind = training_data(SHAPE, SIZES["equal"]), KINDS["plain"]
    model = network().initial(1)
    behind = torch.cat([torch.ones(5), model])[5:]
    strided = torch.stack([model, torch.ones_like(model)], dim=1)[:, 0]
    found = {
        bits(batched(data, kind.how).train_orders(data.orders(start)))
        for start in (model, behind, strided)
    }
    assert len(found) == 1


def test_what_is_kept_changes_no_bit() -> None:
    data, kind = training_data(SHAPE, SIZES["about equal"]), KINDS["plain"]
    model, used = network().initial(1), batched(data, kind.how)
    used.train_orders(data.orders(model, (2, 3, 4), round=1))
    fresh, orders = batched(data, kind.how), data.orders(model)
    assert bits(used.train_orders(orders)) == bits(fresh.train_orders(orders))


def test_orders_of_other_simulations_have_points_of_their_own() -> None:
    """Client 0 of one seed is not client 0 of another."""
    data, kind = training_data(SHAPE, (9, 9)), KINDS["plain"]
    other = replace(data, clients=data.clients[::-1])
    model = network().initial(1)
    theirs = other.orders(model, [0], seed=6)
    together = batched(data, kind.how).train_orders(data.orders(model) + theirs)
    alone = batched(other, kind.how).train_orders(theirs)
    torch.testing.assert_close(together.updates[2:], alone.updates, rtol=1e-4, atol=1e-6)


def test_what_is_kept_stays_below_half_of_the_images() -> None:
    data, kind = training_data(SHAPE, (40, 40, 40)), KINDS["plain"]
    engine, model = batched(data, kind.how), network().initial(1)
    draw = np.random.default_rng(0)
    for _ in range(30):
        clients = [draw.permutation(120)[:40] for _ in range(3)]
        engine.train_orders(replace(data, clients=clients).orders(model))
        assert dense(engine).grams.numbers <= data.images.numel() // 2


def test_a_single_step_needs_no_products() -> None:
    data, kind = training_data(SHAPE, SIZES["about equal"]), Kind.of(batch=0, epochs=1)
    engine = batched(data, kind.how)
    engine.train_orders(data.orders(network().initial(1)))
    assert dense(engine).grams.numbers == 0
    ours = trained_by("batched", network(), data, kind)
    assert_same(ours, trained_by("sequential", network(), data, kind), tolerance=1e-11)


def test_many_clients_are_trained_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    data, kind = training_data(SHAPE, SIZES["about equal"]), KINDS["plain"]
    whole = trained_by("batched", network(), data, kind)
    monkeypatch.setattr("fedsteer.training.engines.dense.MOST_NUMBERS", 12_000)
    assert_same(trained_by("batched", network(), data, kind), whole, tolerance=1e-11)


def test_a_client_that_diverges_does_not_touch_the_others() -> None:
    data = training_data(SHAPE, (9, 13, 8))
    data.images[data.clients[1]] = torch.inf
    how = KINDS["plain"].how
    trained = batched(data, how).train_orders(data.orders(network().initial(1)))
    assert torch.isfinite(trained.updates).all(dim=1).tolist() == [True, False, True]
