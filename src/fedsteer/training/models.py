"""The networks of the paper, two small ones, and any `nn.Module` by import path."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsteer.errors import ConfigurationError, check_name, first_line, unknown
from fedsteer.training.networks import Network

Shape = tuple[int, int, int]
"""Channels, height, width of an image."""

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def logistic(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression: convex."""
    return _with_head([], shape, classes, (), None)


def mlp(
    shape: Shape, classes: int, hidden: tuple[int, ...] = (64,), activation: str = "relu"
) -> nn.Module:
    """Fully connected layers."""
    check_name("activation", activation, ACTIVATIONS)
    return _with_head([], shape, classes, hidden, ACTIVATIONS[activation])


def emnist_cnn(
    shape: Shape,
    classes: int,
    channels: tuple[int, ...] = (16, 24, 32),
    pools: int = 2,
    hidden: tuple[int, ...] = (256, 84),
) -> nn.Module:
    """Three 5x5 convolutions with tanh; pooling after the first two (text: pools=3)."""
    layers: list[nn.Module] = []
    for index, (inside, outside) in enumerate(pairwise((shape[0], *channels))):
        layers += [nn.Conv2d(inside, outside, 5, padding=2), nn.Tanh()]
        layers += [nn.MaxPool2d(2)] if index < pools else []
    return _with_head(layers, shape, classes, hidden, nn.Tanh)


def fashion_cnn(
    shape: Shape,
    classes: int,
    channels: tuple[int, ...] = (64, 128),
    padding: int = 0,
    hidden: tuple[int, ...] = (512,),
    head: str = "logits",
) -> nn.Module:
    """Two 3x3 convolutions with ReLU and pooling after each, one hidden layer.

    head="softmax" is the authors' code: no activation between the linear layers, then ReLU and a
    softmax before the cross entropy.
    """
    check_name("head", head, ("logits", "softmax"))
    layers: list[nn.Module] = []
    for inside, outside in pairwise((shape[0], *channels)):
        layers += [nn.Conv2d(inside, outside, 3, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
    if head == "logits":
        return _with_head(layers, shape, classes, hidden, nn.ReLU)
    plain = _with_head(layers, shape, classes, hidden, None)
    return nn.Sequential(*plain, nn.ReLU(), nn.Softmax(dim=-1))


class PreActBlock(nn.Module):  # type: ignore[misc]
    """Batch norm and ReLU before each of two 3x3 convolutions, with a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.norm1 = _norm(inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm2 = _norm(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        changes = stride != 1 or inside != outside
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False) if changes else None

    def forward(self, images: Tensor) -> Tensor:
        ahead = F.relu(self.norm1(images))
        around = images if self.shortcut is None else self.shortcut(ahead)
        inner = self.conv2(F.relu(self.norm2(self.conv1(ahead))))
        return inner + around


def preact_resnet18(shape: Shape, classes: int, width: int = 64) -> nn.Module:
    """PreAct ResNet-18 (He et al. 2016), batch norm without running statistics."""
    layers: list[nn.Module] = [nn.Conv2d(shape[0], width, 3, padding=1, bias=False)]
    widths = (width, width, 2 * width, 4 * width, 8 * width)
    for inside, outside in pairwise(widths):
        layers.append(PreActBlock(inside, outside, stride=outside // inside))
        layers.append(PreActBlock(outside, outside, stride=1))
    tail = [_norm(widths[-1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *tail, nn.Linear(widths[-1], classes))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "emnist-cnn": emnist_cnn,
    "fashion-cnn": fashion_cnn,
    "preact-resnet18": preact_resnet18,
}


def make_network(name: str, shape: Shape, classes: int, options: Mapping[str, Any]) -> Network:
    """A network by name, or by import path "package.module:factory".

    A factory is called as factory(shape, classes, **options) and returns an `nn.Module`.
    """
    build = _imported(name) if ":" in name else MODELS.get(name)
    if build is None:
        raise unknown("model", name, MODELS)
    parameters = inspect.signature(build).parameters.values()
    known = [parameter.name for parameter in parameters][2:]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    for option in options:
        if not takes_any and option not in known:
            raise unknown(f"option of model {name}", option, known)
    plain = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
    for key in ("channels", "hidden", "width"):
        if name not in MODELS or key not in plain:
            continue
        sizes = (plain[key],) if key == "width" else plain[key]
        if not isinstance(sizes, tuple) or not all(type(n) is int and n > 0 for n in sizes):
            raise ConfigurationError(
                f"{key} of model {name} must be whole numbers above 0 like [64], not {options[key]}"
            )

    def factory() -> nn.Module:
        module = build(shape, classes, **plain)
        if not isinstance(module, nn.Module):
            raise ConfigurationError(f"{name} returned {type(module).__name__}, not an nn.Module")
        return module

    try:
        return Network(factory)
    except ConfigurationError:
        raise
    except Exception as error:  # raised by the factory
        raise ConfigurationError(f"model {name} cannot be built: {first_line(error)}") from error


def source_of(name: str) -> str | None:
    """The file with the code of a user's factory; None for built-in networks."""
    if ":" not in name:
        return None
    try:
        path = inspect.getsourcefile(import_module(name.partition(":")[0]))
    except (ImportError, TypeError, ValueError):  # `make_network` says what is wrong
        return None
    return path if path is not None and Path(path).is_file() else None  # not in an archive


def try_out(name: str, network: Network, images: Tensor, classes: int) -> None:
    """Run two images through a user's network, so that its errors are not blamed on clients."""
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found = network.logits(network.initial(0).to(images.device), images[:2])
    except Exception as error:
        shape, reason = tuple(images.shape[1:]), first_line(error)
        message = f"model {name} fails on images of shape {shape}: {reason}"
        raise ConfigurationError(message) from error
    what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if not isinstance(what, tuple) or len(what) != 2 or what[0] != 2 or what[1] < classes:
        raise ConfigurationError(
            f"model {name} makes {what} of two images; {classes} classes need (2, {classes})"
        )


def _imported(path: str) -> Callable[..., nn.Module]:
    module, _, attribute = path.partition(":")
    try:
        found: Callable[..., nn.Module] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(f"model {path!r} cannot be imported: {error}") from None
    if not callable(found):
        raise ConfigurationError(f"model {path!r} is not a factory: it cannot be called")
    return found


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, track_running_stats=False)


def _with_head(
    layers: list[nn.Module],
    shape: Shape,
    classes: int,
    hidden: tuple[int, ...],
    activation: Callable[[], nn.Module] | None,
) -> nn.Sequential:
    """The convolutions, flattened, and fully connected layers of the right size."""
    with torch.no_grad():
        width = int(nn.Sequential(*layers)(torch.zeros(1, *shape)).numel())
    layers = [*layers, nn.Flatten()]
    for size in hidden:
        layers.append(nn.Linear(width, size))
        layers += [] if activation is None else [activation()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, classes))
