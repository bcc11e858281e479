"""Which networks are stacks of known layers that end in logits."""

from dataclasses import replace
from typing import Any, TypeGuard

from torch import nn

from fedsteer.training.layers.basic import Convolution, Flatten, Layer, Linear
from fedsteer.training.layers.convolution import Window
from fedsteer.training.layers.residual import Block, Mean, Norm
from fedsteer.training.models import PreActBlock
from fedsteer.training.networks import Network

ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}


def known_layers(network: Network) -> list[Layer] | None:
    """The layers, or None if the network is anything but a plain stack of known ones."""
    # Exact types, because a subclass may compute something else. A layer that occurs twice has its
    # parameters listed once, so its second place is not known and the network is not plain.
    module = network.module
    if type(module) is not nn.Sequential or not all(map(_unchanged, module.modules())):
        return None
    stack = _Stack({p.name: p.start for p in network.parameters})
    try:
        for place, part in enumerate(module):
            stack.add(part, str(place))
    except _Unknown:
        return None
    last = stack.layers[-1] if stack.layers else None
    return stack.layers if isinstance(last, Linear) and not last.activation else None


def is_dense(layers: list[Layer]) -> TypeGuard[list[Linear]]:
    """Whether all layers are fully connected."""
    return all(isinstance(layer, Linear) for layer in layers)


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


class _Unknown(Exception):
    """The network is not a plain stack of known layers."""


def _need(condition: object) -> None:
    if not condition:
        raise _Unknown


class _Stack:
    """The layers so far; `add` raises `_Unknown` if the next one is not known in its place."""

    def __init__(self, starts: dict[str, int]) -> None:
        self.starts = starts
        self.layers: list[Any] = []
        self.flat = False  # images have become vectors

    def add(self, module: nn.Module, name: str) -> None:
        """Add a module; activations and pooling join the layer before them."""
        kind: type = type(module)
        last: Any = self.layers[-1] if self.layers else None
        if kind is nn.ReLU and isinstance(last, Norm) and not last.relu:
            self.layers[-1] = replace(last, relu=True)
        elif kind in ACTIVATIONS:
            _need(isinstance(last, (Linear, Convolution)) and not last.activation)
            self.layers[-1] = replace(last, activation=ACTIVATIONS[kind])
        elif kind is nn.MaxPool2d:
            _need(isinstance(last, Convolution) and last.activation and not last.pools)
            _need((module.kernel_size, module.stride, module.padding) == (2, 2, 0))
            _need((module.dilation, module.ceil_mode) == (1, False))
            self.layers[-1] = replace(last, pools=True)
        elif kind is nn.Flatten:
            _need((module.start_dim, module.end_dim) == (1, -1))
            _need(not self.flat or isinstance(last, Mean))
            # The first layer of a dense network takes images as vectors anyway.
            self.layers += [] if self.flat or not self.layers else [Flatten()]
            self.flat = True
        elif kind is nn.AdaptiveAvgPool2d:
            _need(module.output_size in (1, (1, 1)) and self.layers and not self.flat)
            self.layers.append(Mean())
            self.flat = True
        else:
            makers = {
                nn.Linear: self._linear,
                nn.Conv2d: self._convolution,
                nn.BatchNorm2d: self._norm,
                PreActBlock: self._block,
            }
            _need(kind in makers and self.flat == (kind is nn.Linear))
            self.layers.append(makers[kind](module, name))

    def _start(self, name: str, parameter: str) -> int:
        """Where a parameter is in the flat vector."""
        _need(f"{name}.{parameter}" in self.starts)
        return self.starts[f"{name}.{parameter}"]

    def _linear(self, module: nn.Linear, name: str) -> Linear:
        weight, bias = self._start(name, "weight"), self._start(name, "bias")
        return Linear(module.in_features, module.out_features, weight, bias)

    def _convolution(self, module: nn.Conv2d, name: str) -> Convolution:
        size, stride, padding = module.kernel_size[0], module.stride[0], module.padding[0]
        _need((module.kernel_size, module.stride) == ((size, size), (stride, stride)))
        _need(module.padding == (padding, padding) and 0 <= padding < size)
        _need((module.padding_mode, module.dilation, module.groups) == ("zeros", (1, 1), 1))
        return Convolution(
            inside=module.in_channels,
            outside=module.out_channels,
            window=Window(size, stride, padding),
            weight=self._start(name, "weight"),
            bias=-1 if module.bias is None else self._start(name, "bias"),
        )

    def _norm(self, module: nn.BatchNorm2d, name: str) -> Norm:
        _need(not module.track_running_stats)
        weight, bias = self._start(name, "weight"), self._start(name, "bias")
        return Norm(module.num_features, weight, bias, module.eps)

    def _block(self, module: PreActBlock, name: str) -> Block:
        around = module.shortcut
        return Block(
            norm1=replace(self._norm(module.norm1, f"{name}.norm1"), relu=True),
            conv1=self._convolution(module.conv1, f"{name}.conv1"),
            norm2=replace(self._norm(module.norm2, f"{name}.norm2"), relu=True),
            conv2=self._convolution(module.conv2, f"{name}.conv2"),
            shortcut=None if around is None else self._convolution(around, f"{name}.shortcut"),
        )
