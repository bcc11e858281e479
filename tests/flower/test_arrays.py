"""Any array layout: state dicts with buffers, subsets, plain lists, half precision, no torch."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict

from fedsteer import RULES, ConfigurationError
from fedsteer.errors import DataError
from fedsteer.flower import FedAvg, FedProx, FedSteer, Scaffold
from fedsteer.flower.asking import CORRECTION
from fedsteer.flower.client import (
    add_correction,
    correction,
    proximal_penalty,
    proximal_strength,
    sent_parameters,
)
from fedsteer.flower.model import Layout
from tests.flower.fake import FakeGrid, arrays, drifting, reply_with, values

torch = pytest.importorskip("torch")


def net() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)]
    return torch.nn.Sequential(*layers)


def fit(client: int) -> Any:
    """A torch client: a few steps with batch norm in training mode."""

    def answer(message: Message) -> Message:
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        if message.metadata.message_type.startswith("evaluate"):
            return reply_with(message, None, 8, client, accuracy=1.0)
        generator = torch.Generator().manual_seed(client)
        x = torch.randn(8, 4, generator=generator) + client
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        sent = sent_parameters(model, message)
        for _ in range(2):
            optimiser.zero_grad()
            loss = (model(x) ** 2).mean() + proximal_penalty(model, message, sent)
            loss.backward()
            add_correction(model, message)
            optimiser.step()
        steps = {"num-steps": 2, "train_loss": float(loss.detach())}
        return reply_with(message, ArrayRecord(model.state_dict()), 8, client, **steps)

    return answer


def test_a_state_dict_with_buffers() -> None:
    grid = FakeGrid({c: fit(c) for c in (1, 2, 3)})
    result = FedSteer(core_size=2).start(grid, ArrayRecord(net().state_dict()), num_rounds=3)
    state = result.arrays.to_torch_state_dict()
    before = net().state_dict()
    assert list(state) == list(before)
    for name, tensor in before.items():
        assert state[name].shape == tensor.shape and state[name].dtype == tensor.dtype
    assert int(state["1.num_batches_tracked"]) == 6  # 2 a round, averaged as a whole number
    assert not torch.equal(state["1.running_mean"], before["1.running_mean"])
    net().load_state_dict(state)


def test_arrays_that_the_model_does_not_have_are_refused() -> None:
    """SCAFFOLD without its correction would go unnoticed."""
    model = torch.nn.Linear(2, 1)
    unnamed = ArrayRecord([np.ones((1, 2), np.float32), np.ones(1, np.float32)])
    content = RecordDict({"arrays": unnamed, CORRECTION: unnamed})
    message = Message(content, dst_node_id=3, message_type="train")
    model(torch.ones(1, 2)).sum().backward()
    for helper in (add_correction, sent_parameters):
        with pytest.raises(ConfigurationError, match="named '0', but the model has none"):
            helper(model, message)


def test_tied_weights_have_two_names() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
    )
    model[1].weight = model[0].weight
    content = RecordDict({"arrays": ArrayRecord(model.state_dict())})
    message = Message(content, dst_node_id=3, message_type="train")
    assert len(sent_parameters(model, message)) == 1


def test_buffers_are_the_mean_over_fresh_clients() -> None:
    initial = {"w": np.zeros(2, np.float32), "m.running_var": np.ones(2, np.float32)}

    def client(value: float, points: int) -> Any:
        named = {"w": np.full(2, value, np.float32), "m.running_var": np.full(2, value, np.float32)}
        return lambda message: reply_with(message, arrays(**named), points, int(value))

    nan = {"w": np.full(2, np.nan, np.float32), "m.running_var": np.full(2, 9, np.float32)}
    answers = {1: client(1.0, 30), 2: client(2.0, 10)}
    grid = FakeGrid(answers | {3: lambda message: reply_with(message, arrays(**nan), 10, 3)})
    strategy = FedSteer(fraction_evaluate=0.0, server_rate=0.5, step="fixed")
    found = values(strategy.start(grid, arrays(**initial), num_rounds=1).arrays)
    np.testing.assert_allclose(found["m.running_var"], 1.25)  # no server rate, no dropped client
    np.testing.assert_allclose(found["w"], 0.625)


def test_a_chosen_subset_is_steered_and_the_rest_averaged() -> None:
    initial = {"body": np.ones(3, np.float32), "lora.a": np.zeros(2, np.float32)}
    strategy = FedSteer(steer="*lora*", server_rate=0.5, fraction_evaluate=0.0, step="fixed")
    grid = FakeGrid({1: drifting(1)})
    found = values(strategy.start(grid, arrays(**initial), num_rounds=1).arrays)
    assert strategy.run.model.layout.dim == 2
    np.testing.assert_allclose(found["body"], 0.9 + 0.1 * np.cos(np.arange(3) + 1), rtol=1e-6)
    np.testing.assert_allclose(found["lora.a"], 0.05 * np.cos(np.arange(2) + 1), rtol=1e-6)


def test_half_precision_models_keep_a_wide_master_copy() -> None:
    initial = {"w": np.full(3, 100.0, np.float16)}

    def client(message: Message) -> Message:
        weights = values(message.content["arrays"])["w"]  # type: ignore[arg-type]
        assert weights.dtype == np.float16
        return reply_with(message, arrays(w=weights + np.float16(0.0625)), 10, 1)

    strategy = FedAvg(preset="paper", server_rate=0.1, fraction_evaluate=0.0)
    result = strategy.start(FakeGrid({1: client}), arrays(**initial), num_rounds=8)
    assert values(result.arrays)["w"].dtype == np.float16
    np.testing.assert_allclose(strategy.run.model.vector, 100.05, rtol=1e-6)  # 8 steps of 0.00625
    assert strategy.run.model.vector.dtype == np.float32


def test_lists_of_numpy_arrays() -> None:
    record = ArrayRecord([np.zeros((2, 3)), np.zeros(2)])
    result = FedSteer().start(FakeGrid({1: drifting(1)}), record, num_rounds=2)
    found = result.arrays.to_numpy_ndarrays()
    assert [array.shape for array in found] == [(2, 3), (2,)]
    assert all(array.dtype == np.float64 for array in found)


def test_float64_models_stay_float64() -> None:
    strategy = FedSteer()
    strategy.start(FakeGrid({1: drifting(1)}), arrays(w=np.zeros(3)), num_rounds=1)
    assert strategy.run.model.vector.dtype == np.float64


def test_layouts() -> None:
    named = {"a": np.zeros((), np.float32), "b": np.zeros((2, 0), np.float32), "i": np.arange(3)}
    layout = Layout(named, ["*"], [])
    assert layout.dim == 1
    back = layout.unflatten(layout.flatten(named), layout.rest(named))
    assert [array.shape for array in back.values()] == [(), (2, 0), (3,)]
    layout.check(dict(reversed(named.items())))  # the order of names does not matter
    with pytest.raises(DataError, match="type"):
        layout.check(named | {"i": np.array(["x", "y", "z"])})
    with pytest.raises(ConfigurationError, match="steer"):
        Layout({"i": np.arange(3)}, ["*"], [])
    with pytest.raises(ConfigurationError, match="complex"):
        Layout({"c": np.zeros(3, complex)}, ["*"], [])


@pytest.mark.parametrize("strategy", [FedProx(proximal=0.5), Scaffold(local_rate=0.1)])
def test_rules_that_need_help_from_clients(strategy: Any) -> None:
    grid = FakeGrid({c: fit(c) for c in (1, 2, 3)})
    result = strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=4)
    assert all(
        torch.isfinite(t.double()).all() for t in result.arrays.to_torch_state_dict().values()
    )


def test_the_helpers_do_what_they_say() -> None:
    seen: list[Message] = []

    def client(message: Message) -> Message:
        seen.append(message)
        return fit(1)(message)

    FedProx(proximal=0.5, fraction_evaluate=0.0).start(
        FakeGrid({1: client}), ArrayRecord(net().state_dict()), num_rounds=1
    )
    model, message = net(), seen.pop()
    assert proximal_strength(message) == 0.5 and correction(message) is None
    sent = sent_parameters(model, message)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 2.0
    count = sum(parameter.numel() for parameter in model.parameters())
    assert proximal_penalty(model, message, sent).item() == pytest.approx(0.25 * 4 * count)

    Scaffold(local_rate=0.1, fraction_evaluate=0.0).start(
        FakeGrid({1: client, 2: fit(2)}), ArrayRecord(net().state_dict()), num_rounds=2
    )
    message = seen.pop()
    term = correction(message)
    assert term is not None and np.abs(term["0.weight"]).max() > 0
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    add_correction(model, message)
    np.testing.assert_allclose(model[0].weight.grad.numpy(), term["0.weight"])
    assert proximal_strength(message) == 0.0 and proximal_penalty(model, message, []) == 0.0


WITHOUT_TORCH = """
import sys, warnings
warnings.simplefilter("ignore")

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "sklearn", "scipy", "pandas"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Absent())
import numpy as np
from flwr.app import ArrayRecord
from fedsteer.flower import STRATEGIES
from tests.flower.fake import FakeGrid, drifting

for name, strategy in STRATEGIES.items():
    grid = FakeGrid({c: drifting(c) for c in (1, 2, 3)})
    folder = sys.argv[1] + "/" + name
    record = ArrayRecord([np.zeros((2, 3), np.float32), np.zeros(2, np.float32)])
    result = strategy(folder=folder).start(grid, record, num_rounds=2)
    moved = any(array.any() for array in result.arrays.to_numpy_ndarrays())
    assert moved or name == "scaffold", name  # which needs the number of steps
assert "torch" not in sys.modules
print("done", len(STRATEGIES))
"""


def test_numpy_models_need_no_torch(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_TORCH), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["done", str(len(RULES))]


def test_helpers_skip_parameters_that_were_not_sent() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    some = {n: p.detach().numpy() + 1 for n, p in model.named_parameters() if n.startswith("1.")}
    content = RecordDict({"arrays": arrays(**some), CORRECTION: arrays(**some)})
    message = Message(content, dst_node_id=3, message_type="train")
    sent = sent_parameters(model, message)
    before = [parameter.detach() for parameter in model.parameters()]
    apart = [float((then - now).abs().max()) for then, now in zip(sent, before, strict=True)]
    assert apart == pytest.approx([0.0, 0.0, 1.0, 1.0])
    model(torch.ones(1, 2)).sum().backward()
    before = [p.grad.clone() for p in model.parameters()]
    add_correction(model, message)
    moved = [bool((p.grad != b).any()) for p, b in zip(model.parameters(), before, strict=True)]
    assert moved == [False, False, True, True]
