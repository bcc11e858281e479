"""The fast engine equals the plain one, whatever is trained and however."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsteer.errors import ConfigurationError
from fedsteer.training import (
    LocalTraining,
    Network,
    Order,
    Trained,
    choose_engine,
    choose_threads,
    make_engine,
    make_network,
)
from fedsteer.training.engines import ENGINES
from fedsteer.training.engines.batched import BatchedEngine
from fedsteer.training.layers.formula import FormulaGradient
from fedsteer.training.layers.known import known_layers
from fedsteer.training.loss import cross_entropy
from tests.training.made_data import CLASSES, SKEWED, FederatedData, training_data

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Enrolled:
    """One network and the images it is tried on."""

    model: str
    options: dict[str, Any] = field(default_factory=dict)
    shape: Shape = (1, 8, 8)
    sizes: tuple[int, ...] = SKEWED

    def network(self) -> Network:
        return make_network(self.model, self.shape, CLASSES, self.options)


OWN = "tests.training.own_networks"
NETWORKS = {
    "logistic": Enrolled("logistic"),
    "mlp-relu": Enrolled("mlp", {"hidden": [9, 7]}),
    "mlp-tanh": Enrolled("mlp", {"hidden": [9], "activation": "tanh"}),
    "emnist-cnn": Enrolled("emnist-cnn", {"channels": [2, 3, 4], "hidden": [8, 6]}),
    "fashion-cnn": Enrolled("fashion-cnn", {"channels": [2, 3], "padding": 1, "hidden": [8]}),
    "fashion-cnn-softmax": Enrolled(
        "fashion-cnn", {"channels": [2, 3], "padding": 1, "hidden": [8], "head": "softmax"}
    ),
    # 16 x 16: below that a batch of one point leaves batch norm a single number per channel.
    "preact-resnet18": Enrolled("preact-resnet18", {"width": 4}, (3, 16, 16), (1, 2, 7)),
    "own": Enrolled(f"{OWN}:gated"),
}


@dataclass(frozen=True)
class Kind:
    """One way to train."""

    how: LocalTraining = field(default_factory=lambda: LocalTraining(epochs=2, batch=8, rate=0.05))
    proximal: float = 0.0
    corrections: bool = False
    starts: bool = False

    @classmethod
    def of(cls, **options: Any) -> Kind:
        return cls(LocalTraining(**({"epochs": 2, "batch": 8, "rate": 0.05} | options)))


KINDS = {
    "plain": Kind(),
    "momentum": Kind.of(momentum=0.9),
    "weight-decay": Kind.of(weight_decay=0.1),
    "proximal": Kind(proximal=0.3),
    "correction": Kind(corrections=True),
    "starts": Kind(starts=True),
    "masked": Kind.of(mask_absent_labels=True),
    "crop-flip": Kind.of(augment="crop-flip"),
    "whole-data": Kind.of(batch=0, epochs=3),
    "partial-batches": Kind.of(batch=3, epochs=1),
    "everything": Kind(
        LocalTraining(
            epochs=2,
            batch=5,
            rate=0.05,
            momentum=0.5,
            weight_decay=0.01,
            mask_absent_labels=True,
            augment="crop-flip",
        ),
        proximal=0.2,
        corrections=True,
        starts=True,
    ),
}


def orders_of(kind: Kind, data: FederatedData, model: Tensor, round: int = 3) -> list[Order]:
    """Every client; if the kind says so, every other one has a payload of its own."""
    orders = []
    for order in data.orders(model, round=round, proximal=kind.proximal):
        noise = torch.Generator().manual_seed(order.client)
        own = torch.randn(len(model), generator=noise, dtype=model.dtype)
        start = model + 0.01 * own if kind.starts and order.client % 2 else model
        correction = 0.01 * own.flip(0) if kind.corrections and order.client % 3 else None
        orders.append(replace(order, start=start, correction=correction))
    return orders


def trained_by(
    engine: str,
    network: Network,
    data: FederatedData,
    kind: Kind,
    clients: list[int] | None = None,
) -> Trained:
    """In double precision, so that kinks of ReLU and batch norm do not blow rounding up."""
    data = replace(data, images=data.images.double())
    orders = orders_of(kind, data, network.initial(1).double())
    if clients is not None:
        orders = [orders[client] for client in clients]
    return make_engine(engine, network, data, kind.how).train_orders(orders)


def assert_same(ours: Trained, theirs: Trained, tolerance: float = 3e-6) -> None:
    assert not ours.updates.is_inference()  # the caller may change them
    assert ours.updates.shape == theirs.updates.shape
    scale = theirs.updates.abs().amax(dim=1, keepdim=True)
    assert bool((scale > 0).all())
    apart = ((ours.updates - theirs.updates).abs() / scale).max()
    assert float(apart) < tolerance
    np.testing.assert_array_equal(ours.steps, theirs.steps)
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-4)


every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
every_network = pytest.mark.parametrize("entry", NETWORKS.values(), ids=NETWORKS.keys())


BY_FORMULA = {name: entry for name, entry in NETWORKS.items() if known_layers(entry.network())}
every_formula = pytest.mark.parametrize("entry", BY_FORMULA.values(), ids=BY_FORMULA.keys())


@every_formula
@every_kind
def test_batched_equals_sequential(entry: Enrolled, kind: Kind) -> None:
    network, data = entry.network(), training_data(entry.shape, entry.sizes)
    ours = trained_by("batched", network, data, kind)
    theirs = trained_by("sequential", network, data, kind)
    assert_same(ours, theirs)


KNOWN = {name: NETWORKS[name] for name in ("mlp-relu", "emnist-cnn", "fashion-cnn")}
KNOWN |= {
    "odd sizes": Enrolled("emnist-cnn", {"channels": [3, 2], "hidden": [5]}, (3, 11, 9)),
    "no padding": Enrolled("fashion-cnn", {"channels": [3, 2], "hidden": []}, (2, 13, 10)),
}
ON_CPU = [engine for engine in ENGINES if engine != "captured"]
every_engine = pytest.mark.parametrize("engine", ON_CPU)
every_known = pytest.mark.parametrize("entry", KNOWN.values(), ids=KNOWN.keys())


@every_known
@every_kind
def test_threaded_equals_sequential(entry: Enrolled, kind: Kind) -> None:
    network, data = entry.network(), training_data(entry.shape, entry.sizes)
    ours = trained_by("threaded", network, data, kind)
    assert_same(ours, trained_by("sequential", network, data, kind), tolerance=1e-11)


FORMULAS = {
    "logistic": ("logistic", {}),
    "mlp": ("mlp", {"hidden": (7, 5), "activation": "tanh"}),
    "tanh convolutions": ("emnist-cnn", {"channels": (3, 4, 2), "hidden": (6,)}),
    "three pools": ("emnist-cnn", {"channels": (3, 4, 2), "pools": 3, "hidden": ()}),
    "relu without padding": ("fashion-cnn", {"channels": (3, 4), "hidden": (6,)}),
    "residual blocks": ("preact-resnet18", {"width": 3}),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_by_formula_equal_those_of_torch(name: str) -> None:
    model, options = FORMULAS[name]
    network = make_network(model, (2, 12, 12), 4, options)
    draw = torch.Generator().manual_seed(0)
    start = network.initial(1).double()
    flat = start + 0.1 * torch.randn((3, network.dim), generator=draw, dtype=torch.float64)
    images = torch.rand((3, 6, 2, 12, 12), generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 4, (3, 6), generator=draw)
    weights = torch.full((3, 6), 1 / 6, dtype=torch.float64)
    formula = FormulaGradient(network)
    if formula.pads:
        weights[1] = torch.tensor([0.5, 0.5, 0, 0, 0, 0])
    masks = torch.tensor([[1.0, 1, 1, 0], [1, 1, 1, 1], [0, 1, 0, 1]])
    for mask in (None, masks):
        given = (images, labels, weights, mask)
        gradient, losses = formula(formula.arrange(flat), *given)
        expected, expected_losses = by_autograd(network, flat, *given)
        torch.testing.assert_close(formula.restore(gradient), expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(losses, expected_losses, rtol=1e-9, atol=1e-12)


def by_autograd(
    network: Network,
    flat: Tensor,
    images: Tensor,
    labels: Tensor,
    weights: Tensor,
    masks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(c, d) gradients and (c,) losses, one client after the other."""
    gradients, losses = [], []
    for client, own in enumerate(flat):
        leaf = own.clone().requires_grad_()
        kept = weights[client] > 0  # the others are padding
        mask = None if masks is None else masks[client]
        loss = cross_entropy(network.logits(leaf, images[client, kept]), labels[client, kept], mask)
        gradients.append(torch.autograd.grad(loss, leaf)[0])
        losses.append(loss.detach())
    return torch.stack(gradients), torch.stack(losses)


@every_formula
def test_a_client_does_not_depend_on_who_else_trains(entry: Enrolled) -> None:
    network, data, kind = entry.network(), training_data(entry.shape, entry.sizes), KINDS["plain"]
    together = trained_by("batched", network, data, kind)
    everyone = list(range(len(data.clients)))
    backwards = trained_by("batched", network, data, kind, everyone[::-1])
    turned = Trained(
        updates=backwards.updates.flip(0),
        steps=backwards.steps[::-1],
        losses=backwards.losses[::-1],
    )
    assert_same(turned, together)
    for client in range(len(data.clients)):
        alone = trained_by("batched", network, data, kind, [client])
        assert_same(alone, together.part(slice(client, client + 1)))


@pytest.mark.parametrize("width", [1, 3, 8, 100])
@pytest.mark.parametrize("name", ["mlp-relu", "fashion-cnn"])
def test_the_width_of_a_batch_of_clients_does_not_matter(name: str, width: int) -> None:
    network, data, kind = NETWORKS[name].network(), training_data(), KINDS["everything"]
    engine = BatchedEngine(network, replace(data, images=data.images.double()), kind.how)
    engine.width = width
    ours = engine.train_orders(orders_of(kind, data, network.initial(1).double()))
    assert_same(ours, trained_by("sequential", network, data, kind))


@pytest.mark.parametrize(
    ("engine", "name"),
    [("sequential", "mlp-relu"), ("sequential", "own"), ("batched", "mlp-relu")],
)
def test_same_draws_same_bits_and_the_round_counts(engine: str, name: str) -> None:
    network, data, kind = NETWORKS[name].network(), training_data(), KINDS["everything"]
    model = network.initial(1)
    before = torch.get_rng_state()

    def train(seed: int, round: int) -> bytes:
        orders = [replace(o, seed=seed) for o in orders_of(kind, data, model, round)]
        trained = make_engine(engine, network, data, kind.how).train_orders(orders)
        return trained.updates.numpy().tobytes() + trained.losses.tobytes()

    assert train(5, 3) == train(5, 3)
    assert train(5, 3) != train(5, 4)
    assert train(5, 3) != train(6, 3)
    assert torch.equal(torch.get_rng_state(), before)


@every_engine
@pytest.mark.parametrize("batch", [0, 1, 3, 8, 100])
def test_steps_are_counted(engine: str, batch: int) -> None:
    network, data = NETWORKS["logistic"].network(), training_data()
    how = LocalTraining(epochs=3, batch=batch, rate=0.05)
    trained = trained_by(engine, network, data, Kind(how))
    expected = [3 * (-(-size // batch) if batch else 1) for size in SKEWED]
    assert trained.steps.tolist() == expected
    orders = data.orders(network.initial(1))
    lengths = [len(order.schedule(how)[1]) for order in orders]
    assert trained.steps.tolist() == lengths


@every_engine
def test_no_clients_to_train(engine: str) -> None:
    network, data = NETWORKS["mlp-relu"].network(), training_data()
    trained = trained_by(engine, network, data, KINDS["plain"], clients=[])
    assert trained.updates.shape == (0, network.dim)
    assert len(trained.steps) == len(trained.losses) == 0


@every_engine
def test_the_global_model_stays_as_it_is(engine: str) -> None:
    network, data, kind = NETWORKS["mlp-relu"].network(), training_data(), KINDS["everything"]
    model = network.initial(1)
    orders = orders_of(kind, data, model)
    kept = [model.clone(), *(order.start.clone() for order in orders)]
    make_engine(engine, network, data, kind.how).train_orders(orders)
    after = [model, *(order.start for order in orders)]
    assert all(torch.equal(a, b) for a, b in zip(kept, after, strict=True))


def test_one_step_by_hand() -> None:
    """Logistic regression on one point: w <- w - rate (softmax - onehot) x, as on paper."""
    network, data = NETWORKS["logistic"].network(), training_data(sizes=(1, 4))
    how = LocalTraining(epochs=1, batch=0, rate=0.5)
    trained = trained_by("sequential", network, data, Kind(how), [0])
    model = network.initial(1).double()
    weight, bias = model[: 4 * 64].view(4, 64), model[4 * 64 :]
    point = int(data.clients[0][0])
    pixels = data.images[point].flatten().double()
    error = torch.softmax(weight @ pixels + bias, 0)
    error[data.labels[point]] -= 1
    by_hand = 0.5 * torch.cat([torch.outer(error, pixels).flatten(), error])
    torch.testing.assert_close(trained.updates[0], by_hand, rtol=1e-4, atol=1e-6)


def test_masked_labels_are_neither_learnt_nor_punished() -> None:
    network, data = NETWORKS["logistic"].network(), training_data(sizes=(1, 4))
    how = LocalTraining(epochs=2, batch=0, rate=0.5, mask_absent_labels=True)
    for engine in ON_CPU:
        update = trained_by(engine, network, data, Kind(how), [0]).updates[0]
        label = int(data.labels[int(data.clients[0][0])])
        touched = update[: 4 * 64].view(4, 64).abs().sum(dim=1) > 0
        assert touched.tolist() == [row == label for row in range(4)]


def test_dropout_is_a_draw_of_the_client_and_its_round() -> None:
    network, data = make_network(f"{OWN}:forgetful", (1, 8, 8), CLASSES, {}), training_data()
    model = network.initial(1)

    def train(clients: list[int], round: int = 3) -> dict[int, bytes]:
        engine = make_engine("sequential", network, data, LocalTraining(epochs=1))
        trained = engine.train_orders(data.orders(model, clients, round=round))
        return {c: u.numpy().tobytes() for c, u in zip(clients, trained.updates, strict=True)}

    torch.manual_seed(1)
    one = train([4, 6])
    torch.manual_seed(2)
    other = train([7, 6, 4])
    assert one == {client: other[client] for client in one}
    assert train([6], round=4)[6] != one[6]


def test_the_choice_of_engine_is_static() -> None:
    how, dense, other = LocalTraining(), NETWORKS["mlp-relu"].network(), NETWORKS["own"].network()

    def chosen(network: Network) -> list[str]:
        return [choose_engine(network, how, device) for device in ("cpu", "cuda")]

    assert chosen(dense) == ["batched", "batched"]
    assert chosen(other) == ["sequential", "captured"]
    assert chosen(NETWORKS["emnist-cnn"].network()) == ["threaded", "batched"]
    residual = make_network("preact-resnet18", (3, 8, 8), CLASSES, {"width": 4})
    assert chosen(residual) == ["sequential", "captured"]
    assert choose_engine(residual, how, "cuda", exact=False) == "batched"
    assert [choose_threads(dense, 8), choose_threads(other, 8), choose_threads(other, 2)] == [
        1,
        4,
        2,
    ]
    with pytest.raises(ConfigurationError, match="did you mean 'batched'"):
        make_engine("bacthed", dense, training_data(), how)
    with pytest.raises(ConfigurationError, match="needs a CPU and a plain stack"):
        make_engine("threaded", other, training_data(), how)
    with pytest.raises(ConfigurationError, match="needs a network made of layers"):
        make_engine("batched", other, training_data(), how)
    with pytest.raises(ConfigurationError, match="needs a GPU"):
        make_engine("captured", other, training_data(), how)


def test_the_old_name_of_the_batched_engine_is_known() -> None:
    """Manifests of older runs have it, and resumed runs keep their engine."""
    network = NETWORKS["mlp-relu"].network()
    assert make_engine("stacked", network, training_data(), LocalTraining()).name == "batched"


@dataclass(frozen=True)
class WithAdam(LocalTraining):
    """What a new local optimiser looks like before any fast engine knows it."""

    optimiser: str = "sgd"


@pytest.mark.parametrize("name", NETWORKS)
def test_an_optimiser_that_an_engine_does_not_know_falls_to_the_reference(name: str) -> None:
    network, data = NETWORKS[name].network(), training_data()
    for device in ("cpu", "cuda"):
        usual = choose_engine(network, LocalTraining(), device)
        assert choose_engine(network, WithAdam(optimiser="sgd"), device) == usual
        assert choose_engine(network, WithAdam(optimiser="adam"), device) == "sequential"
    for engine in ENGINES.values():
        for device in ("cpu", "cuda"):
            reason = engine.supports(network, WithAdam(optimiser="adam"), device)
            assert (reason is None) == (engine.name == "sequential")
    assert make_engine("sequential", network, data, WithAdam(optimiser="adam"))
    for fast in ("batched", "threaded"):
        if choose_engine(network, LocalTraining(), "cpu") == fast:
            with pytest.raises(ConfigurationError, match=r"does not know training\.optimiser"):
                make_engine(fast, network, data, WithAdam(optimiser="adam"))


OPTIMISERS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.1},
    "both": {"momentum": 0.5, "weight_decay": 0.1},
}


@pytest.mark.parametrize("proximal", [0.0, 0.3])
@pytest.mark.parametrize("corrections", [False, True])
@pytest.mark.parametrize("options", OPTIMISERS.values(), ids=OPTIMISERS.keys())
@pytest.mark.parametrize("width", [8, 20])  # 20 x 20: wide enough for the dense path
def test_every_engine_takes_the_steps_of_every_optimiser(
    width: int, options: dict[str, float], corrections: bool, proximal: float
) -> None:
    network = make_network("mlp", (1, width, width), CLASSES, {"hidden": [9]})
    data = training_data((1, width, width), (8, 13, 9, 7))
    kind = replace(Kind.of(**options), corrections=corrections, proximal=proximal)
    reference = trained_by("sequential", network, data, kind)
    compared = [
        name
        for name, engine in ENGINES.items()
        if engine.supports(network, kind.how, "cpu") is None
    ]
    assert compared == ["sequential", "threaded", "batched"]
    for engine in compared:
        assert_same(trained_by(engine, network, data, kind), reference, tolerance=1e-11)
    plain = trained_by("sequential", network, data, KINDS["plain"])
    if options or corrections or proximal:
        assert float((plain.updates - reference.updates).abs().max()) > 1e-4


@pytest.mark.parametrize("kind", [KINDS["plain"], KINDS["everything"]], ids=["plain", "everything"])
def test_threads_change_no_bit(kind: Kind) -> None:
    """Each client is one thread's own: not even float32 rounding depends on the others."""
    network, data = NETWORKS["emnist-cnn"].network(), training_data()
    model = network.initial(1)
    found = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        engine = make_engine("threaded", network, data, kind.how)
        trained = engine.train_orders(orders_of(kind, data, model))
        found.add(trained.updates.numpy().tobytes() + trained.losses.tobytes())
        assert torch.get_num_threads() == threads
    assert len(found) == 1


@pytest.mark.parametrize("model", ["mlp", "emnist-cnn"])
def test_no_client_meets_the_points_of_another(model: str) -> None:
    """Not even as padding: an image that is not finite concerns its own client alone."""
    network, data = make_network(model, (1, 8, 8), CLASSES, {}), training_data()
    first = next(c for c, points in enumerate(data.clients) if 0 in points)
    data.images[0] = torch.nan
    kind = replace(KINDS["plain"], how=LocalTraining(batch=4, epochs=2))
    others = [client for client in range(len(data.clients)) if client != first]
    orders = data.orders(network.initial(1), others)
    ours, theirs = (
        make_engine(name, network, data, kind.how).train_orders(orders)
        for name in ("batched", "sequential")
    )
    assert ours.updates.isfinite().all()
    assert_same(ours, theirs, tolerance=1e-4)


def test_pooling_gives_the_gradient_to_the_first_of_equal_pixels() -> None:
    """Blank images: every pixel of a square is the largest."""
    entry = NETWORKS["emnist-cnn"]
    network, data = entry.network(), training_data()
    data.images[::2] = 0.0
    data.images[1::2, :, :5] = 1.0
    ours = trained_by("threaded", network, data, KINDS["plain"])
    assert_same(ours, trained_by("sequential", network, data, KINDS["plain"]), tolerance=1e-11)


def test_threaded_in_float32_is_equal_to_rounding() -> None:
    network, data = NETWORKS["emnist-cnn"].network(), training_data()
    orders = data.orders(network.initial(1))
    ours, theirs = (
        make_engine(name, network, data, KINDS["plain"].how).train_orders(orders)
        for name in ("threaded", "sequential")
    )
    assert_same(ours, theirs, tolerance=1e-4)


def test_residual_networks_train_in_float32_on_a_cpu() -> None:
    """Their strided filters of one pixel once wrote past the end of torch's memory."""
    entry, kind = NETWORKS["preact-resnet18"], KINDS["plain"]
    network, data = entry.network(), training_data(entry.shape, entry.sizes)
    for _ in range(3):
        orders = orders_of(kind, data, network.initial(1))
        found, expected = (
            make_engine(name, network, data, kind.how).train_orders(orders).updates
            for name in ("batched", "sequential")
        )
    assert (found - expected).norm() < 0.05 * expected.norm()
