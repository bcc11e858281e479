"""Which networks are stacks of known layers that end in logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from fedsteer.training.layers.basic import Convolution, Flatten, Layer, Linear
from fedsteer.training.layers.convolution import Window
from fedsteer.training.layers.residual import Block, Mean, Norm
from fedsteer.training.models import PreActBlock
from fedsteer.training.networks import Network

ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}


def known_layers(network: Network, exact: bool = True) -> list[Layer] | None:
    """The layers, or None if the network is anything but a plain stack of known ones.

    `exact` asks for float32 products on a GPU; shorter ones are several times faster there.
    """
    # Exact types, because a subclass may compute something else. A layer that occurs twice has its
    # parameters listed once, so its second place is not known and the network is not plain.
    if type(network.module) is not nn.Sequential:
        return None
    if not all(map(_unchanged, network.module.modules())):
        return None
    known = _Known({p.name: p.start for p in network.parameters}, exact)
    for place, module in enumerate(network.module):
        if not known.take(module, str(place)):
            return None
    layers = known.layers
    ends = layers and isinstance(layers[-1], Linear) and not layers[-1].activation
    return layers if ends else None


def is_dense(layers: list[Layer]) -> bool:
    """Whether all layers are fully connected."""
    return all(isinstance(layer, (Linear, Flatten)) for layer in layers)


def mixes_samples(layers: list[Layer]) -> bool:
    """Whether samples of a batch influence each other."""
    return any(isinstance(layer, (Norm, Block)) for layer in layers)


def _unchanged(module: nn.Module) -> bool:
    """Whether the module does what its type says: no hooks, no method of its own."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return not any(hooks) and "forward" not in vars(module)


class _Known:
    """The layers so far."""

    def __init__(self, starts: dict[str, int], exact: bool) -> None:
        self.starts, self.exact = starts, exact
        self.layers: list[Any] = []
        self.flat = False  # images have become vectors

    def take(self, module: nn.Module, name: str) -> bool:
        """Add a module; False if it is not known, or not in this place."""
        last = self.layers[-1] if self.layers else None
        kind = type(module)
        layer: Layer | None = None
        if kind in ACTIVATIONS:
            return self._activate(last, ACTIVATIONS[kind])
        if kind is nn.Flatten:
            if isinstance(last, Mean):
                return _whole(module)
            if self.flat or not _whole(module):
                return False
            self.flat, layer = True, Flatten()
        elif kind is nn.Linear and self.flat:
            weight, bias = self._start(name, "weight"), self._start(name, "bias")
            layer = Linear(module.in_features, module.out_features, weight, bias)
            if min(weight, bias) < 0:
                return False
        elif self.flat:
            return False
        elif kind is nn.Conv2d:
            layer = self._convolution(module, name)
        elif kind is nn.BatchNorm2d:
            layer = self._norm(module, name)
        elif kind is PreActBlock:
            layer = self._block(module, name)
        elif kind is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1)) and last:
            self.flat, layer = True, Mean()
        elif kind is nn.MaxPool2d and isinstance(last, Convolution) and _halves(module):
            if not last.activation or last.pools:
                return False
            self.layers[-1] = replace(last, pools=True)
            return True
        else:
            return False
        if layer is not None:
            self.layers.append(layer)
        return layer is not None

    def _activate(self, last: Any, activation: str) -> bool:
        if isinstance(last, Norm) and activation == "relu" and not last.relu:
            self.layers[-1] = replace(last, relu=True)
            return True
        if not isinstance(last, (Linear, Convolution)) or last.activation:
            return False
        if getattr(last, "pools", False):
            return False
        self.layers[-1] = replace(last, activation=activation)
        return True

    def _start(self, name: str, parameter: str) -> int:
        return self.starts.get(f"{name}.{parameter}", -1)

    def _convolution(self, module: nn.Conv2d, name: str) -> Convolution | None:
        weight, bias = self._start(name, "weight"), self._start(name, "bias")
        if not _plain(module) or weight < 0 or (bias < 0 and module.bias is not None):
            return None
        window = Window(module.kernel_size[0], module.stride[0], module.padding[0])
        channels = (module.in_channels, module.out_channels)
        return Convolution(*channels, window, weight, bias, exact=self.exact)

    def _norm(self, module: nn.BatchNorm2d, name: str) -> Norm | None:
        weight, bias = self._start(name, "weight"), self._start(name, "bias")
        if module.track_running_stats or min(weight, bias) < 0:
            return None
        return Norm(module.num_features, weight, bias, module.eps)

    def _block(self, module: PreActBlock, name: str) -> Block | None:
        parts = [
            self._norm(module.norm1, f"{name}.norm1"),
            self._convolution(module.conv1, f"{name}.conv1"),
            self._norm(module.norm2, f"{name}.norm2"),
            self._convolution(module.conv2, f"{name}.conv2"),
        ]
        around = module.shortcut
        shortcut = None if around is None else self._convolution(around, f"{name}.shortcut")
        if any(part is None for part in parts) or (around is not None and shortcut is None):
            return None
        norm1, conv1, norm2, conv2 = (
            replace(part, relu=True) if isinstance(part, Norm) else part for part in parts
        )
        return Block(norm1, conv1, norm2, conv2, shortcut)  # type: ignore[arg-type]


def _plain(module: nn.Conv2d) -> bool:
    """A square kernel, no groups, and zero padding smaller than the kernel."""
    rows, columns = module.kernel_size
    return (
        rows == columns
        and module.stride[0] == module.stride[1]
        and module.dilation == (1, 1)
        and module.groups == 1
        and module.padding_mode == "zeros"
        and module.padding in [(p, p) for p in range(rows)]
    )


def _whole(module: nn.Module) -> bool:
    return (module.start_dim, module.end_dim) == (1, -1)


def _halves(module: nn.Module) -> bool:
    sizes = (module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)
    return sizes == (2, 2, 0, 1, False)
