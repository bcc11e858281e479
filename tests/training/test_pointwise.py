"""Wide dense networks trained through their clients' points equal the plain engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer.training import Job, LocalTraining, Network, TrainingData, make_engine, make_network
from fedsteer.training.engines import choose_threads
from fedsteer.training.known import known_layers
from fedsteer.training.pointwise import Pointwise, is_wide
from fedsteer.training.products import Products
from fedsteer.training.stacked import Stacked
from tests.training.made_data import CLASSES, training_data
from tests.training.test_engines import KINDS, Kind, assert_same, jobs_of, trained_by

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


def stacked(data: TrainingData, how: LocalTraining, seed: int = 5) -> Stacked:
    made = make_engine("stacked", network(), data, how, seed)
    assert isinstance(made, Stacked)
    return made


def pointwise(engine: Stacked) -> Pointwise:
    assert engine.pointwise is not None
    return engine.pointwise


def is_suited(sizes: tuple[int, ...], kind: Kind) -> bool:
    data = training_data(SHAPE, sizes)
    engine, model = stacked(data, kind.how), network().initial(1)
    jobs = jobs_of(kind, len(sizes), model)
    return pointwise(engine).suits(engine.orders(model, jobs, 3, kind.proximal))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_equal_to_sequential(sizes: tuple[int, ...], name: str, kind: Kind) -> None:
    data = training_data(SHAPE, sizes)
    ours = trained_by("stacked", network(name), data, kind)
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
    """Where a batch is a slice of the points, and not all clients have as many batches."""
    data = training_data(SHAPE, sizes)
    ours = trained_by("stacked", network(name), data, kind)
    assert_same(ours, trained_by("sequential", network(name), data, kind), tolerance=1e-11)


def test_a_client_counts_only_its_own_steps() -> None:
    data, how = training_data(SHAPE, (13, 8, 5)), KINDS["plain"].how  # 2 epochs of batches of 8
    trained = stacked(data, how).train(network().initial(1), [Job(c) for c in range(3)], 1)
    assert trained.steps.tolist() == [4, 2, 2]


def test_who_was_not_here_for_longest_goes_first() -> None:
    clients = [np.arange(first, first + 3) for first in (0, 3, 6)]
    images = torch.rand((9, 5))
    products = Products(room=2 * 9)

    def ask(which: int) -> None:
        found = torch.empty((1, 3, 3))
        products.of([clients[which]], images[clients[which]].unsqueeze(0), found)
        torch.testing.assert_close(found[0], images[clients[which]] @ images[clients[which]].T + 1)

    for which in (0, 1, 0, 2):
        ask(which)
    assert [points[0] for points in products._points] == [0, 6]
    assert products.numbers == 18


@pytest.mark.parametrize("room", [0, 40, 100, 1000])
def test_products_of_any_clients_in_any_order(room: int) -> None:
    """Of few and many, alike and not, for the first time, again, or twice at once."""
    images, draw = torch.rand((60, 5)), np.random.default_rng(room)
    clients = [np.sort(draw.choice(60, size, replace=False)) for size in (3, 3, 3, 5, 4, 5, 2)]
    products = Products(room)
    for _ in range(200):
        cohort = [clients[i] for i in draw.choice(7, draw.integers(1, 8))]
        most = max(map(len, cohort))
        filled = torch.stack([images[np.resize(points, most)] for points in cohort])
        found = torch.full((len(cohort), most, most), np.nan)
        products.of(cohort, filled, found)
        for points, ours in zip(cohort, found, strict=True):
            expected = torch.zeros((most, most))
            expected[: len(points), : len(points)] = images[points] @ images[points].T + 1
            torch.testing.assert_close(ours, expected)
        assert products.numbers <= room


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
            engine = make_engine("stacked", wide, data, KINDS[kind].how, 5)
            trained = engine.train(model, [Job(client) for client in range(clients)], 3)
            found.add(bits(trained))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_losses_of_a_run_that_diverges_are_those_of_other_engines() -> None:
    """Times a rate that large they do not fit into four bytes."""
    data, how = training_data(SHAPE, SIZES["equal"]), LocalTraining(rate=1e25, epochs=1, batch=4)
    plain, jobs = network("logistic"), [Job(client) for client in range(4)]
    ours, theirs = (
        make_engine(name, plain, data, how, 5).train(plain.initial(1), jobs, 2)
        for name in ("stacked", "sequential")
    )
    assert np.isfinite(theirs.losses).all() and theirs.losses.max() > 1e20
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-2)


def test_a_model_may_lie_anywhere_in_memory() -> None:
    data, kind = training_data(SHAPE, SIZES["equal"]), KINDS["plain"]
    model, jobs = network().initial(1), [Job(client) for client in range(4)]
    behind = torch.cat([torch.ones(5), model])[5:]
    strided = torch.stack([model, torch.ones_like(model)], dim=1)[:, 0]
    found = {bits(stacked(data, kind.how).train(m, jobs, 2)) for m in (model, behind, strided)}
    assert len(found) == 1


def test_what_is_kept_changes_no_bit() -> None:
    data, kind = training_data(SHAPE, SIZES["about equal"]), KINDS["plain"]
    model, used = network().initial(1), stacked(data, kind.how)
    jobs = [Job(client) for client in range(6)]
    used.train(model, jobs[2:5], 1)
    fresh = stacked(data, kind.how)
    assert bits(used.train(model, jobs, 2)) == bits(fresh.train(model, jobs, 2))


def test_orders_of_other_simulations_have_points_of_their_own() -> None:
    """Client 0 of one seed is not client 0 of another."""
    data, kind = training_data(SHAPE, (9, 9)), KINDS["plain"]
    other = replace(data, clients=data.clients[::-1])
    model, engine = network().initial(1), stacked(data, kind.how)
    theirs = stacked(other, kind.how, seed=6)
    orders = engine.orders(model, [Job(0), Job(1)], 2) + theirs.orders(model, [Job(0)], 2)
    together = engine.carry_out(orders, model)
    alone = theirs.train(model, [Job(0)], 2)
    torch.testing.assert_close(together.updates[2:], alone.updates, rtol=1e-4, atol=1e-6)


def test_what_is_kept_stays_below_half_of_the_images() -> None:
    data, kind = training_data(SHAPE, (40, 40, 40)), KINDS["plain"]
    engine, model = stacked(data, kind.how), network().initial(1)
    draw = np.random.default_rng(0)
    for _ in range(30):
        clients = [draw.permutation(120)[:40] for _ in range(3)]
        engine.data = replace(data, clients=clients)
        engine.train(model, [Job(client) for client in range(3)], 1)
        assert pointwise(engine).products.numbers <= data.images.numel() // 2


def test_a_single_step_needs_no_products() -> None:
    data, kind = training_data(SHAPE, SIZES["about equal"]), Kind.of(batch=0, epochs=1)
    engine = stacked(data, kind.how)
    engine.train(network().initial(1), [Job(client) for client in range(6)], 3)
    assert pointwise(engine).products.numbers == 0
    ours = trained_by("stacked", network(), data, kind)
    assert_same(ours, trained_by("sequential", network(), data, kind), tolerance=1e-11)


def test_many_clients_are_trained_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    data, kind = training_data(SHAPE, SIZES["about equal"]), KINDS["plain"]
    whole = trained_by("stacked", network(), data, kind)
    monkeypatch.setattr("fedsteer.training.pointwise.TOGETHER", 12_000)
    assert_same(trained_by("stacked", network(), data, kind), whole, tolerance=1e-11)


def test_a_client_that_diverges_does_not_touch_the_others() -> None:
    data = training_data(SHAPE, (9, 13, 8))
    data.images[data.clients[1]] = torch.inf
    how = KINDS["plain"].how
    trained = stacked(data, how).train(network().initial(1), [Job(c) for c in range(3)], 1)
    assert torch.isfinite(trained.updates).all(dim=1).tolist() == [True, False, True]
