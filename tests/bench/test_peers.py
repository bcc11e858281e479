"""Workers of `benchmarks/peers`: protocol, processes, weights in JAX's layout."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.peers.measure import measure
from benchmarks.peers.module import initial_module
from benchmarks.peers.processes import PEERS, Peer, Variant, Worker, WorkerFailed, command
from benchmarks.peers.protocol import Gate, load_work, save_work
from benchmarks.peers.sides.fedjax import LAYERS, StoredOrder, from_torch, shapes, to_torch
from benchmarks.peers.table import to_text
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedsteer.bench.measure import Plan
from fedsteer.bench.workloads import WORKLOADS, Workload, make_work
from tests.bench.tiny import TINY


class Script:
    """A channel with prepared commands."""

    def __init__(self, *commands: str) -> None:
        self.commands, self.answers = list(commands), []  # type: ignore[var-annotated]

    def receive(self) -> list[str]:
        return self.commands.pop(0).split()

    def send(self, **answer: Any) -> None:
        self.answers.append(answer)


def test_rounds_come_in_the_blocks_asked_for(tmp_path: Path) -> None:
    done = 0
    path = tmp_path / "some weights.npy"
    script = Script("rounds 2", "rounds 3", f"weights {path}", "end")
    settled: list[int] = []
    gate = Gate(
        script,  # type: ignore[arg-type]
        lambda: np.array([done], np.float32),
        settle=lambda: settled.append(done),
        version="any 1",
    )
    while gate.next_round():
        done += 1
    assert done == 5 and settled == [2, 5]
    assert [list(answer) for answer in script.answers] == [
        ["ready", "version"],
        ["seconds"],
        ["seconds"],
        ["saved"],
    ]
    assert np.load(path).tolist() == [5.0]


def test_processes_without_a_channel_follow_the_first() -> None:
    told = iter([3, 0])
    gate = Gate(None, lambda: np.zeros(1, np.float32), share=lambda count: next(told))
    done = 0
    while gate.next_round():
        done += 1
    assert done == 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_work(make_work(TINY["a"]), tmp_path)
    return tmp_path


def test_a_worker_process_answers(folder: Path) -> None:
    worker = Worker(PEERS["plain"], Variant("1 thread", 1), folder, sys.executable)
    try:
        assert worker.facts["version"].startswith("torch ")
        before = worker.weights()
        assert worker.rounds(2) > 0
        assert (worker.weights() != before).any()
    finally:
        worker.close()
        worker.close()
    assert worker.process.returncode == 0


def test_a_worker_that_dies_is_quoted(folder: Path) -> None:
    absent = Peer("absent", "Absent", module="absent")
    with pytest.raises(WorkerFailed, match=r"\(1 thread\) died: .*sides\.absent"):
        Worker(absent, Variant("1 thread", 1), folder, sys.executable)


def test_a_worker_that_does_not_answer_is_ended(folder: Path) -> None:
    mute = folder / "mute"
    mute.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    mute.chmod(0o755)
    with pytest.raises(WorkerFailed, match="did not answer for 0 s: it printed nothing"):
        Worker(PEERS["plain"], Variant("1 thread", 1), folder, str(mute), patience=0.2)


def test_the_launcher_is_used_for_processes_only(folder: Path) -> None:
    several = command(PEERS["pfl"], Variant("2 processes", 1, 2), folder, "python")
    assert "--nproc-per-node=2" in several
    single = command(PEERS["pfl"], Variant("2 threads", 2), folder, "python")
    assert single[:5] == ["python", "-m", "benchmarks.peers.worker", "pfl", "pfl"]


def test_variants_of_a_peer() -> None:
    labels = {name: [v.label for v in peer.variants(2)] for name, peer in PEERS.items()}
    assert labels["plain"] == ["1 thread", "2 threads"]
    assert labels["pfl"] == ["1 thread", "2 threads", "2 processes"]
    assert labels["flower"] == ["2 threads", "2 actors"]
    assert [v.label for v in PEERS["flower"].variants(1)] == ["1 thread"]


def test_a_peer_that_cannot_run_is_reported_and_left_out(tmp_path: Path) -> None:
    work = make_work(TINY["a"])
    save_work(work, tmp_path)
    absent = Peer("absent", "Absent", module="absent")
    sides = [peer.side(sys.executable, tmp_path, 1) for peer in (PEERS["fedsteer"], absent)]
    found = measure(work, Plan(warm_up=1, trials=1, block=1, repeats=2), sides)
    assert [side["name"] for side in found["sides"]] == ["fedsteer"]
    assert "No module named 'benchmarks.peers.sides.absent'" in found["failures"]["absent"]
    assert "Absent (1 thread) died: ModuleNotFoundError" in to_text(found, sides)


NEEDS = {"pfl": ["pfl"], "fedjax": ["fedjax"], "flower": ["flwr", "ray"]}
INSTALLED = [name for name, needed in NEEDS.items() if all(map(find_spec, needed))]


@pytest.mark.skipif(not INSTALLED, reason="no other simulator is installed here")
def test_installed_simulators_end_with_the_weights_of_the_plain_loop(tmp_path: Path) -> None:
    work = make_work(TINY["b"])
    save_work(work, tmp_path)
    sides = [PEERS[name].side(sys.executable, tmp_path, 1) for name in ("plain", *INSTALLED)]
    found = measure(work, Plan(warm_up=1, trials=1, block=1, repeats=2), sides)
    assert not found["failures"]
    assert all(side["distance"] < 1e-5 for side in found["sides"])


@pytest.mark.parametrize("workload", TINY.values(), ids=list(TINY))
def test_work_survives_the_disk(workload: Workload, tmp_path: Path) -> None:
    work = make_work(workload)
    save_work(work, tmp_path)
    found = load_work(tmp_path)
    assert found.workload == work.workload
    for name in ("images", "labels", "cohorts", "initial"):
        np.testing.assert_array_equal(getattr(found, name), getattr(work, name))


def test_a_module_begins_with_the_weights_of_the_work() -> None:
    work = make_work(TINY["c"])
    given = replace(work, initial=work.initial + 1)
    found = parameters_to_vector(initial_module(given).parameters()).detach()
    np.testing.assert_array_equal(found, given.initial)


def torch_module(workload: Workload) -> nn.Sequential:
    """The network of FedJAX's side, built from its layers in torch."""
    layers: list[nn.Module] = []
    for layer, shape in zip(LAYERS[workload.key], shapes(workload), strict=True):
        inside = shape.weight[1]
        if layer.kernel:
            layers.append(nn.Conv2d(inside, layer.size, layer.kernel, padding=layer.padding))
        else:
            layers += [nn.Flatten()] if shape.image else []
            layers.append(nn.Linear(inside, layer.size))
        if layer.activation:
            layers.append({"relu": nn.ReLU, "tanh": nn.Tanh}[layer.activation]())
        layers += [nn.MaxPool2d(2)] if layer.pool else []
    return nn.Sequential(*layers)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_fedjax_builds_the_same_network(workload: Workload) -> None:
    network, module = workload.network(), torch_module(workload)
    images = torch.rand((3, *workload.shape), generator=torch.Generator().manual_seed(0))
    flat = network.initial(0)
    vector_to_parameters(flat, module.parameters())
    torch.testing.assert_close(network.logits(flat, images), module(images))


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_weights_in_the_layout_of_jax_and_back(workload: Workload) -> None:
    module = workload.network().factory()
    flat = np.arange(workload.network().dim, dtype=np.float32)
    there = from_torch(workload, flat)
    np.testing.assert_array_equal(to_torch(workload, there), flat)
    dense = next(at for at, layer in enumerate(LAYERS[workload.key]) if not layer.kernel)
    torch_layer = next(m for m in module if isinstance(m, nn.Linear))
    assert there[dense][0].shape == (torch_layer.in_features, torch_layer.out_features)


def test_an_epoch_of_fedjax_ends_with_a_smaller_batch() -> None:
    order = StoredOrder(np.arange(10), np.arange(10), TINY["a"])
    batches = [batch["y"].tolist() for batch in order.shuffle_repeat_batch(None)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
    assert len(order) == 10
