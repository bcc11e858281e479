"""The engines of a GPU equal the sequential reference; skipped if there is none."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from fedsteer.errors import TrainingFailed
from fedsteer.training import LocalTraining, Network, make_engine, make_network
from tests.training.made_data import CLASSES, FederatedData, training_data

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or not torch.cuda.is_available(), reason="no GPU, or no Triton"
)
HOW = LocalTraining(epochs=2, batch=8, rate=0.02, momentum=0.5)
CASES = {
    "emnist-cnn": ("batched", "emnist-cnn", {"channels": [4, 6, 8], "hidden": [12]}),
    "fashion-cnn": ("batched", "fashion-cnn", {"channels": [8, 70], "padding": 1, "hidden": [8]}),
    "wide": ("batched", "fashion-cnn", {"channels": [4, 300], "padding": 1, "hidden": [8]}),
    "preact-resnet18": ("batched", "preact-resnet18", {"width": 8}),
    "preact-resnet18, captured": ("captured", "preact-resnet18", {"width": 8}),
    "own, captured": ("captured", "tests.training.own_networks:gated", {}),
}


def on_gpu(network: Network) -> tuple[Network, FederatedData]:
    data = training_data((3, 16, 16), (2, 7, 9, 20))
    network.module.cuda()
    return network, replace(data, images=data.images.cuda(), labels=data.labels.cuda())


@pytest.mark.parametrize("name", CASES)
def test_float32_equals_the_reference(name: str) -> None:
    engine, model, options = CASES[name]
    network, data = on_gpu(make_network(model, (3, 16, 16), CLASSES, options))
    start = network.initial(1).cuda()
    orders = data.orders(start, proximal=0.1)
    orders[2] = replace(orders[2], correction=0.01 * torch.ones_like(start))
    orders[3] = replace(orders[3], start=start * 0.9)
    ours = make_engine(engine, network, data, HOW).train_orders(orders)
    theirs = make_engine("sequential", network, data, HOW).train_orders(orders)
    apart = (ours.updates - theirs.updates).norm(dim=1) / theirs.updates.norm(dim=1)
    assert float(apart.max()) < (3e-2 if "resnet" in name else 1e-3)  # norms amplify rounding
    assert ours.steps.tolist() == theirs.steps.tolist()
    again = make_engine(engine, network, data, HOW).train_orders(orders)
    assert torch.equal(ours.updates, again.updates)


@pytest.mark.parametrize("name", CASES)
def test_fast_numbers_stay_near(name: str) -> None:
    engine, model, options = CASES[name]
    network, data = on_gpu(make_network(model, (3, 16, 16), CLASSES, options))
    orders = data.orders(network.initial(1).cuda())
    fast = make_engine(engine, network, data, HOW, exact=False).train_orders(orders)
    exact = make_engine(engine, network, data, HOW).train_orders(orders)
    if "resnet" in name:  # norms over a handful of points amplify rounding; the losses stay
        np.testing.assert_allclose(fast.losses, exact.losses, rtol=0.05)
        return
    assert float(torch.cosine_similarity(fast.updates, exact.updates).min()) > 0.7


def test_a_network_that_draws_is_refused_by_captured_steps() -> None:
    layers = (torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(768, CLASSES))
    network, data = on_gpu(Network(lambda: torch.nn.Sequential(*layers)))
    with pytest.raises(TrainingFailed, match="draws random numbers"):
        make_engine("captured", network, data, HOW).train_orders(
            data.orders(network.initial(0).cuda(), [1])
        )
