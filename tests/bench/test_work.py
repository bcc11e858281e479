"""The work that everybody gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsteer.bench.networks import put_weights, take_weights, torch_module
from fedsteer.bench.sides.fedjax import StoredOrder, from_torch, to_torch
from fedsteer.bench.work import load_work, make_work, save_work
from fedsteer.bench.workloads import WORKLOADS, Workload
from fedsteer.training import make_network
from tests.bench.tiny import TINY


@pytest.mark.parametrize("key", WORKLOADS)
def test_fedsteer_trains_the_network_that_the_others_build_from_its_layers(key: str) -> None:
    workload = WORKLOADS[key]
    network = make_network(workload.model, workload.shape, workload.classes, {})
    module = torch_module(workload)
    images = torch.rand((3, *workload.shape), generator=torch.Generator().manual_seed(0))
    flat = network.initial(0)
    put_weights(module, flat.numpy())
    torch.testing.assert_close(network.logits(flat, images), module(images))
    shapes = [shape for pair in workload.parameter_shapes() for shape in pair]
    assert shapes == [tuple(parameter.shape) for parameter in module.parameters()]


def test_work_survives_the_disk(tmp_path: Path) -> None:
    work = make_work(TINY["b"], seed=3)
    save_work(work, tmp_path)
    found = load_work(tmp_path)
    assert found.workload == work.workload
    for name in ("pixels", "labels", "cohorts", "initial"):
        np.testing.assert_array_equal(getattr(found, name), getattr(work, name))


@pytest.mark.parametrize("workload", TINY.values(), ids=list(TINY))
def test_work_is_what_the_workload_says(workload: Workload) -> None:
    work = make_work(workload)
    assert len(work.pixels) == len(work.labels) == workload.clients * workload.points
    assert work.labels.min() >= 0 and work.labels.max() < workload.classes
    assert (np.diff(work.cohorts, axis=1) > 0).all() and work.cohorts.max() < workload.clients
    assert work.cohort(0) != work.cohort(1) or work.cohort(0) != work.cohort(2)
    assert len(work.initial) == len(take_weights(torch_module(workload)))
    assert not np.array_equal(work.labels, make_work(workload, seed=1).labels)


@pytest.mark.parametrize("key", WORKLOADS)
def test_weights_in_the_layout_of_jax_and_back(key: str) -> None:
    workload = WORKLOADS[key]
    size = len(take_weights(torch_module(workload)))
    flat = np.arange(size, dtype=np.float32)
    there = from_torch(workload, flat)
    np.testing.assert_array_equal(to_torch(workload, there), flat)
    dense = next(at for at, layer in enumerate(workload.layers) if not layer.kernel)
    weight = there[dense][0]
    torch_layer = next(m for m in torch_module(workload) if isinstance(m, torch.nn.Linear))
    assert weight.shape == (torch_layer.in_features, torch_layer.out_features)


def test_an_epoch_of_fedjax_ends_with_a_smaller_batch() -> None:
    order = StoredOrder(np.arange(10), np.arange(10), TINY["a"])
    batches = [batch["y"].tolist() for batch in order.shuffle_repeat_batch(None)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
    assert len(order) == 10
