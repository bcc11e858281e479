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
    Job,
    LocalTraining,
    Network,
    Trained,
    TrainingData,
    choose_engine,
    make_engine,
    make_network,
)
from fedsteer.training.engines import ENGINES, choose_threads
from fedsteer.training.formula import FormulaGradient
from fedsteer.training.known import known_layers
from fedsteer.training.local import batches
from fedsteer.training.stacked import Stacked
from fedsteer.training.vmapped import VmappedGradient
from tests.training.made_data import CLASSES, SKEWED, training_data

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


def jobs_of(kind: Kind, clients: int, model: Tensor) -> list[Job]:
    """Every client; where the kind says so, every other one has a payload of its own."""
    jobs = []
    for client in range(clients):
        noise = torch.Generator().manual_seed(client)
        own = torch.randn(len(model), generator=noise, dtype=model.dtype)
        start = model + 0.01 * own if kind.starts and client % 2 else None
        correction = 0.01 * own.flip(0) if kind.corrections and client % 3 else None
        jobs.append(Job(client, start, correction))
    return jobs


def trained_by(
    engine: str, network: Network, data: TrainingData, kind: Kind, jobs: list[Job] | None = None
) -> Trained:
    """In double precision, so that kinks of ReLU and batch norm do not blow rounding up."""
    data = replace(data, images=data.images.double())
    model = network.initial(1).double()
    made = make_engine(engine, network, data, kind.how, seed=5)
    chosen = jobs_of(kind, len(data.clients), model) if jobs is None else jobs
    return made.train(model, chosen, round=3, proximal=kind.proximal)


def assert_same(ours: Trained, theirs: Trained, tolerance: float = 3e-6) -> None:
    assert not ours.updates.is_inference()  # whoever gets them may change them
    assert ours.updates.shape == theirs.updates.shape
    scale = theirs.updates.abs().amax(dim=1, keepdim=True)
    assert bool((scale > 0).all())
    apart = ((ours.updates - theirs.updates).abs() / scale).max()
    assert float(apart) < tolerance
    np.testing.assert_array_equal(ours.steps, theirs.steps)
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-4)


every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
every_network = pytest.mark.parametrize("entry", NETWORKS.values(), ids=NETWORKS.keys())


@every_network
@every_kind
def test_stacked_equals_sequential(entry: Enrolled, kind: Kind) -> None:
    network, data = entry.network(), training_data(entry.shape, entry.sizes)
    ours = trained_by("stacked", network, data, kind)
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
    layers = known_layers(network)
    assert layers is not None
    draw = torch.Generator().manual_seed(0)
    start = network.initial(1).double()
    flat = start + 0.1 * torch.randn((3, network.dim), generator=draw, dtype=torch.float64)
    images = torch.rand((3, 6, 2, 12, 12), generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 4, (3, 6), generator=draw)
    weights = torch.full((3, 6), 1 / 6, dtype=torch.float64)
    formula = FormulaGradient(network, layers)
    if formula.pads:
        weights[1] = torch.tensor([0.5, 0.5, 0, 0, 0, 0])
    masks = torch.tensor([[1.0, 1, 1, 0], [1, 1, 1, 1], [0, 1, 0, 1]])
    for mask in (None, masks):
        given = (images, labels, weights, mask)
        ours, theirs = (
            formula(formula.arrange(flat), *given),
            VmappedGradient(network)(flat, *given),
        )
        torch.testing.assert_close(formula.restore(ours[0]), theirs[0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-9, atol=1e-12)


@every_network
def test_a_client_does_not_depend_on_who_else_trains(entry: Enrolled) -> None:
    network, data, kind = entry.network(), training_data(entry.shape, entry.sizes), KINDS["plain"]
    together = trained_by("stacked", network, data, kind)
    backwards = trained_by(
        "stacked", network, data, kind, [Job(c) for c in reversed(range(len(data.clients)))]
    )
    assert_same(
        Trained(backwards.updates.flip(0), backwards.steps[::-1], backwards.losses[::-1]), together
    )
    for client in range(len(data.clients)):
        alone = trained_by("stacked", network, data, kind, [Job(client)])
        picked = Trained(
            together.updates[[client]], together.steps[[client]], together.losses[[client]]
        )
        assert_same(alone, picked)


@pytest.mark.parametrize("width", [1, 3, 8, 100])
@pytest.mark.parametrize("name", ["mlp-relu", "own"])
def test_the_width_of_a_batch_of_clients_does_not_matter(name: str, width: int) -> None:
    network, data, kind = NETWORKS[name].network(), training_data(), KINDS["everything"]
    layers = known_layers(network)
    gradient = VmappedGradient(network) if layers is None else FormulaGradient(network, layers)
    wide = replace(data, images=data.images.double())
    engine = Stacked(network, wide, kind.how, 5, gradient, width)
    model = network.initial(1).double()
    ours = engine.train(model, jobs_of(kind, 8, model), round=3, proximal=kind.proximal)
    assert_same(ours, trained_by("sequential", network, data, kind))


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("name", ["mlp-relu", "own"])
def test_same_draws_same_bits_and_the_round_counts(engine: str, name: str) -> None:
    network, data, kind = NETWORKS[name].network(), training_data(), KINDS["everything"]
    model = network.initial(1)
    before = torch.get_rng_state()

    def train(seed: int, round: int) -> bytes:
        made = make_engine(engine, network, data, kind.how, seed)
        trained = made.train(model, jobs_of(kind, 8, model), round, kind.proximal)
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
    lengths = [len(batches(how, points, 5, 3, c)) for c, points in enumerate(data.clients)]
    assert trained.steps.tolist() == lengths


@every_engine
def test_nobody_to_train(engine: str) -> None:
    network, data = NETWORKS["mlp-relu"].network(), training_data()
    trained = trained_by(engine, network, data, KINDS["plain"], jobs=[])
    assert trained.updates.shape == (0, network.dim)
    assert len(trained.steps) == len(trained.losses) == 0


@every_engine
def test_the_global_model_stays_as_it_is(engine: str) -> None:
    network, data, kind = NETWORKS["mlp-relu"].network(), training_data(), KINDS["everything"]
    model = network.initial(1)
    jobs = jobs_of(kind, 8, model)
    kept = [model.clone(), *(j.start.clone() for j in jobs if j.start is not None)]
    make_engine(engine, network, data, kind.how, 5).train(model, jobs, 3, kind.proximal)
    after = [model, *(j.start for j in jobs if j.start is not None)]
    assert all(torch.equal(a, b) for a, b in zip(kept, after, strict=True))


def test_one_step_by_hand() -> None:
    """Logistic regression on one point: w <- w - rate (softmax - onehot) x, as on paper."""
    network, data = NETWORKS["logistic"].network(), training_data(sizes=(1, 4))
    how = LocalTraining(epochs=1, batch=0, rate=0.5)
    trained = trained_by("sequential", network, data, Kind(how), [Job(0)])
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
        update = trained_by(engine, network, data, Kind(how), [Job(0)]).updates[0]
        label = int(data.labels[int(data.clients[0][0])])
        touched = update[: 4 * 64].view(4, 64).abs().sum(dim=1) > 0
        assert touched.tolist() == [row == label for row in range(4)]


def test_dropout_is_a_draw_of_the_client_and_its_round() -> None:
    network, data = make_network(f"{OWN}:forgetful", (1, 8, 8), CLASSES, {}), training_data()
    model = network.initial(1)

    def train(clients: list[int], round: int = 3) -> dict[int, bytes]:
        engine = make_engine("sequential", network, data, LocalTraining(epochs=1), 5)
        trained = engine.train(model, [Job(client) for client in clients], round)
        return {c: u.numpy().tobytes() for c, u in zip(clients, trained.updates, strict=True)}

    torch.manual_seed(1)
    one = train([4, 6])
    torch.manual_seed(2)
    other = train([7, 6, 4])
    assert one == {client: other[client] for client in one}
    assert train([6], round=4)[6] != one[6]


def test_the_choice_of_engine_is_static() -> None:
    dense, other = NETWORKS["mlp-relu"].network(), NETWORKS["own"].network()
    assert [choose_engine(dense, "cpu"), choose_engine(dense, "cuda")] == ["stacked"] * 2
    assert [choose_engine(other, "cpu"), choose_engine(other, "cuda")] == ["sequential", "captured"]
    plain = NETWORKS["emnist-cnn"].network()
    assert [choose_engine(plain, "cpu"), choose_engine(plain, "cuda")] == ["threaded", "stacked"]
    residual = make_network("preact-resnet18", (3, 8, 8), CLASSES, {"width": 4})
    assert choose_engine(residual, "cuda", exact=False) == choose_engine(plain, "cuda") == "stacked"
    assert choose_engine(residual, "cuda") == "captured"
    assert [choose_threads(dense, 8), choose_threads(other, 8), choose_threads(other, 2)] == [
        1,
        4,
        2,
    ]
    with pytest.raises(ConfigurationError, match="did you mean 'stacked'"):
        make_engine("stakced", dense, training_data(), LocalTraining(), 0)
    with pytest.raises(ConfigurationError, match="needs a CPU and a plain stack"):
        make_engine("threaded", other, training_data(), LocalTraining(), 0)


@pytest.mark.parametrize("kind", [KINDS["plain"], KINDS["everything"]], ids=["plain", "everything"])
def test_threads_change_no_bit(kind: Kind) -> None:
    """Each client is one thread's own: not even float32 rounding depends on the others."""
    network, data = NETWORKS["emnist-cnn"].network(), training_data()
    model = network.initial(1)
    found = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        engine = make_engine("threaded", network, data, kind.how, 5)
        trained = engine.train(model, jobs_of(kind, 8, model), 3, kind.proximal)
        found.add(trained.updates.numpy().tobytes() + trained.losses.tobytes())
        assert torch.get_num_threads() == threads
    assert len(found) == 1


@pytest.mark.parametrize("model", ["mlp", f"{OWN}:gated", f"{OWN}:centred"])
def test_nobody_meets_points_of_others(model: str) -> None:
    """Not even as padding: one image that is not finite concerns whoever holds it."""
    network, data = make_network(model, (1, 8, 8), CLASSES, {}), training_data()
    first = next(c for c, points in enumerate(data.clients) if 0 in points)
    data.images[0] = torch.nan
    kind = replace(KINDS["plain"], how=LocalTraining(batch=4, epochs=2))
    jobs = [Job(client) for client in range(len(data.clients)) if client != first]
    ours, theirs = (
        make_engine(name, network, data, kind.how, 5).train(network.initial(1), jobs, 3)
        for name in ("stacked", "sequential")
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
    model, jobs = network.initial(1), [Job(client) for client in range(8)]
    ours, theirs = (
        make_engine(name, network, data, KINDS["plain"].how, 5).train(model, jobs, 3)
        for name in ("threaded", "sequential")
    )
    assert_same(ours, theirs, tolerance=1e-4)
