"""Flat parameter vectors, the networks of the paper, and what is a plain stack."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedsteer.errors import ConfigurationError
from fedsteer.training import Network, make_network
from fedsteer.training.layers.basic import Linear
from fedsteer.training.layers.known import is_dense, known_layers
from fedsteer.training.models import try_out

OWN = "tests.training.own_networks"
NARROW: dict[str, dict[str, Any]] = {
    "logistic": {},
    "mlp": {"hidden": [5]},
    "emnist-cnn": {"channels": [2, 2, 2], "hidden": [4, 3]},
    "fashion-cnn": {"channels": [2, 2], "hidden": [4]},
    "preact-resnet18": {"width": 2},
    f"{OWN}:gated": {"width": 2},
}


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "count"),
    [
        ("emnist-cnn", (1, 28, 28), 47, {}, 456_519),
        ("fashion-cnn", (1, 28, 28), 10, {}, 1_718_538),
        ("fashion-cnn", (1, 28, 28), 10, {"channels": [32, 64], "padding": 1}, 1_630_090),
        ("logistic", (1, 8, 8), 10, {}, 650),
        ("mlp", (1, 8, 8), 10, {"hidden": [64]}, 64 * 64 + 64 + 640 + 10),
    ],
)
def test_parameter_counts(
    name: str, shape: tuple[int, int, int], classes: int, options: dict[str, Any], count: int
) -> None:
    assert make_network(name, shape, classes, options).dim == count


def test_preact_resnet18_has_the_size_of_a_resnet18() -> None:
    network = make_network("preact-resnet18", (3, 32, 32), 10, {})
    assert 11.1e6 < network.dim < 11.25e6
    blocks = [m for m in network.module.modules() if isinstance(m, nn.Conv2d)]
    assert sum(m.kernel_size == (3, 3) for m in blocks) == 17


@pytest.mark.parametrize("name", NARROW)
def test_initial_is_a_function_of_the_seed_alone(name: str) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    network = make_network(name, (1, 28, 28), 4, NARROW[name])
    one = network.initial(3)
    assert torch.equal(torch.get_rng_state(), before), "the global generator was touched"
    torch.manual_seed(99)
    other = make_network(name, (1, 28, 28), 4, NARROW[name]).initial(3)
    assert torch.equal(one, other)
    assert not torch.equal(one, network.initial(4))
    assert one.dtype == torch.float32 and one.shape == (network.dim,)


@pytest.mark.parametrize("seed", [0, 2**31, 10**17])
def test_any_seed_will_do(seed: int) -> None:
    assert make_network("logistic", (1, 2, 2), 2, {}).initial(seed).isfinite().all()


@pytest.mark.parametrize("name", NARROW)
def test_logits_under_a_flat_vector_are_those_of_the_module(name: str) -> None:
    network = make_network(name, (1, 28, 28), 4, NARROW[name])
    flat = network.initial(1)
    nn.utils.vector_to_parameters(flat, network.module.parameters())
    images = torch.rand((3, 1, 28, 28), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network.logits(flat, images), network.module(images))


def test_the_softmax_head_is_what_the_authors_wrote() -> None:
    network = make_network("fashion-cnn", (1, 28, 28), 10, {"channels": [2, 2], "head": "softmax"})
    kinds = [type(layer).__name__ for layer in network.module]
    assert kinds[-5:] == ["Flatten", "Linear", "Linear", "ReLU", "Softmax"]
    images = torch.rand((2, 1, 28, 28), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        network.logits(network.initial(0), images).sum(dim=1), torch.ones(2), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mpl", {}, "unknown model 'mpl'; did you mean 'mlp'"),
        ("mlp", {"hiden": [3]}, "unknown option of model mlp 'hiden'; did you mean 'hidden'"),
        ("mlp", {"hidden": "abc"}, "must be whole numbers above 0"),
        ("mlp", {"hidden": 3}, "hidden of model mlp must be"),
        ("mlp", {"hidden": [0]}, "must be whole numbers above 0"),
        ("mlp", {"activation": "relo"}, "did you mean 'relu'"),
        ("fashion-cnn", {"head": "soft"}, "unknown head 'soft'"),
        ("fashion-cnn", {"channels": [2] * 9}, "model fashion-cnn cannot be built"),
        ("fashion-cnn", {"padding": 1.5}, "model fashion-cnn cannot be built"),
        ("preact-resnet18", {"width": 0}, "width of model preact-resnet18 must be whole numbers"),
        (f"{OWN}:refusing", {}, "cannot be built: divisible by nothing$"),
        ("no.such.module:net", {}, "cannot be imported: No module named 'no'"),
        (f"{OWN}:absent", {}, "cannot be imported"),
        (":net", {}, "cannot be imported"),
        (".relative:net", {}, "cannot be imported"),
        (f"{OWN}:NOT_A_FACTORY", {}, "is not a factory"),
        (f"{OWN}:not_a_module", {}, "returned int, not an nn.Module"),
        (f"{OWN}:gated", {"depth": 3}, "unknown option of model .*; did you mean 'width'"),
        (f"{OWN}:without_parameters", {}, "the network has no parameters"),
    ],
)
def test_mistakes(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as error:
        make_network(name, (1, 12, 12), 4, options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("too_few_outputs", r"makes \(2, 3\) of two images; 4 classes need \(2, 4\)"),
        ("mixing", r"makes \(1, 4\) of two images; 4 classes need \(2, 4\)"),
        ("too_large", r"fails on images of shape \(1, 12, 12\): mat1 and mat2"),
    ],
)
def test_networks_are_tried_out(name: str, words: str) -> None:
    shape, images = (1, 12, 12), torch.zeros(9, 1, 12, 12)
    with pytest.raises(ConfigurationError, match=words):
        try_out(name, make_network(f"{OWN}:{name}", shape, 4, {}), images, 4)
    for fine, classes in (("centred", 4), ("centred", 6), ("normalised", 4), ("twice_as_wide", 4)):
        try_out(fine, make_network(f"{OWN}:{fine}", shape, classes, {}), images, 4)


def test_a_network_with_hooks_is_not_known_by_its_layers() -> None:
    def hooked(attach: Callable[[nn.Sequential], object]) -> Network:
        def build() -> nn.Module:
            module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
            attach(module)
            return module

        return Network(build)

    assert known_layers(hooked(lambda module: None)) is not None
    for attach in (
        lambda module: module[3].register_forward_hook(lambda layer, given, found: -found),
        lambda module: module[1].register_forward_pre_hook(lambda layer, given: given),
        lambda module: module[3].register_full_backward_hook(lambda layer, given, found: None),
        lambda module: module.register_forward_hook(lambda layer, given, found: found),
        lambda module: setattr(module[2], "forward", lambda values: values),
    ):
        assert known_layers(hooked(attach)) is None
    with pytest.raises(ConfigurationError, match=r"a hook on parameter '1\.weight'"):
        hooked(lambda module: module[1].weight.register_hook(lambda gradient: gradient))


def test_buffers_are_refused_by_name() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))

    with pytest.raises(ConfigurationError, match=r"buffer '1\.running_mean'"):
        Network(build)


def test_frozen_parameters_are_refused_by_name() -> None:
    def build() -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.Linear(5, 2))
        module[1].weight.requires_grad_(False)
        return module

    with pytest.raises(ConfigurationError, match=r"frozen parameter '1\.weight'"):
        Network(build)


class Own(nn.Sequential):
    """Looks like a stack and computes something else."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = 2 * super().forward(input)
        return output


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def tied() -> nn.Module:
    middle = nn.Linear(3, 3)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), middle, nn.ReLU(), middle, nn.Linear(3, 2)
    )


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
    "relu": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2)),
    "mixed": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)
    ),
}
OTHER: dict[str, Callable[[], nn.Module]] = {
    "not flattened": lambda: nn.Sequential(nn.Linear(2, 2)),
    "flattened otherwise": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(4, 2)),
    "flattened twice": lambda: nn.Sequential(nn.Flatten(), nn.Flatten(), nn.Linear(4, 2)),
    "activation at the end": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU()),
    "activation first": lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(4, 2)),
    "two activations": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Tanh(), nn.Linear(3, 2)
    ),
    "no bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)),
    "another activation": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2)
    ),
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4, 2)),
    "unevenly strided convolution": lambda: nn.Sequential(
        nn.Conv2d(1, 1, 1, stride=(1, 2)), nn.Flatten(), nn.Linear(2, 2)
    ),
    "norm of vectors": lambda: nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)
    ),
    "oblong convolution": lambda: nn.Sequential(
        nn.Conv2d(1, 1, (1, 2)), nn.Flatten(), nn.Linear(2, 2)
    ),
    "pooling without an activation": lambda: nn.Sequential(
        nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 2)
    ),
    "pooling in threes": lambda: nn.Sequential(
        nn.Conv2d(1, 1, 1, padding=0), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(1, 2)
    ),
    "a stack in a stack": lambda: nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 2))),
    "a stack of its own": lambda: Own(nn.Flatten(), nn.Linear(4, 2)),
    "a layer of its own": lambda: nn.Sequential(nn.Flatten(), Doubled(4, 2)),
    "tied weights": tied,
    "named layers": lambda: nn.Sequential(OrderedDict(flat=nn.Flatten(), out=nn.Linear(4, 2))),
    "one layer": lambda: nn.Linear(4, 2),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_stacks_are_recognised(name: str) -> None:
    network = Network(PLAIN[name])
    layers = known_layers(network)
    assert layers is not None
    assert is_dense(layers)
    linear = [m for m in network.module if isinstance(m, nn.Linear)]
    layers = [layer for layer in layers if isinstance(layer, Linear)]
    assert [(la.inside, la.outside) for la in layers] == [
        (m.in_features, m.out_features) for m in linear
    ]
    flat = network.initial(0)
    for layer, module in zip(layers, linear, strict=True):
        nn.utils.vector_to_parameters(flat, network.module.parameters())
        weight = flat[layer.weight : layer.weight + layer.inside * layer.outside]
        assert torch.equal(weight.view(layer.outside, layer.inside), module.weight)
        assert torch.equal(flat[layer.bias : layer.bias + layer.outside], module.bias)


@pytest.mark.parametrize("name", OTHER)
def test_anything_else_is_not(name: str) -> None:
    assert known_layers(Network(OTHER[name])) is None
