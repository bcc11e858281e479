"""Gradients of common networks, many clients at once, by formula.

For a stack of the layers in `layers` under a cross entropy everything is a batched matrix product
or a stacked convolution; written out there is no graph to build. With z the logits:

    dz = weight (softmax(z) - onehot), and backward through the layers
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedsteer.training.layers import Convolution, Flatten, Layer, Linear, Sink
from fedsteer.training.networks import Network

ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}


def known_layers(network: Network, exact: bool = True) -> list[Layer] | None:
    """The layers, if the network is a plain stack of known ones ending in logits; else None.

    `exact` asks for float32 products on a GPU, where tf32 is several times faster.
    """
    # Exact types: a subclass may compute something else. A layer that occurs twice has its
    # parameters listed once, so its second place is not known and the network is not plain.
    if type(network.module) is not nn.Sequential:
        return None
    starts = {parameter.name: parameter.start for parameter in network.parameters}
    layers: list[Any] = []
    for place, module in enumerate(network.module):
        weight, bias = starts.get(f"{place}.weight", -1), starts.get(f"{place}.bias", -1)
        last = layers[-1] if layers else None
        flat = any(isinstance(layer, Flatten) for layer in layers)
        if type(module) is nn.Linear and bias >= 0 and flat:
            layers.append(Linear(module.in_features, module.out_features, weight, bias))
        elif type(module) is nn.Conv2d and bias >= 0 and not flat and _plain(module):
            shape = (module.in_channels, module.out_channels, module.kernel_size[0])
            layers.append(Convolution(*shape, module.padding[0], weight, bias, exact=exact))
        elif type(module) is nn.Flatten and not flat and _whole(module):
            layers.append(Flatten())
        elif type(module) in ACTIVATIONS and isinstance(last, (Linear, Convolution)):
            if last.activation or getattr(last, "pools", False):
                return None
            layers[-1] = replace(last, activation=ACTIVATIONS[type(module)])
        elif type(module) is nn.MaxPool2d and isinstance(last, Convolution) and _halves(module):
            if not last.activation or last.pools:
                return None
            layers[-1] = replace(last, pools=True)
        else:
            return None
    ends = layers and isinstance(layers[-1], Linear) and not layers[-1].activation
    return layers if ends else None


def is_dense(layers: list[Layer]) -> bool:
    """Whether there is nothing but fully connected layers."""
    return not any(isinstance(layer, Convolution) for layer in layers)


class FormulaGradient:
    """(clients, d) gradients and (clients,) losses for stacked parameters and batches."""

    pads = True

    def __init__(self, layers: list[Layer]) -> None:
        self.dense = is_dense(layers)
        self.layers = [x for x in layers if not isinstance(x, Flatten)] if self.dense else layers

    def __call__(
        self, flat: Tensor, images: Tensor, labels: Tensor, weights: Tensor, masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """images (c, b, ...), labels (c, b), weights (c, b): 1/batch size, 0 for padding."""
        gradient = torch.empty(flat.shape, dtype=flat.dtype, device=flat.device)
        return gradient, self._pass(flat, images, labels, weights, masks, Sink(gradient))

    def descend(
        self,
        flat: Tensor,
        images: Tensor,
        labels: Tensor,
        weights: Tensor,
        masks: Tensor | None,
        rate: float,
    ) -> Tensor:
        """flat <- flat - rate gradient, and the losses: half the memory traffic of two steps."""
        sink = Sink(flat, adds=True, scale=-rate)
        return self._pass(flat, images, labels, weights, masks, sink)

    def _pass(
        self,
        flat: Tensor,
        images: Tensor,
        labels: Tensor,
        weights: Tensor,
        masks: Tensor | None,
        sink: Sink,
    ) -> Tensor:
        value = images.flatten(2) if self.dense else images.permute(0, 1, 3, 4, 2)
        inputs, seen = [], []
        for layer in self.layers:
            inputs.append(value)
            value, kept = layer.forward(flat, value)
            seen.append(kept)
        logits = value if masks is None else value * masks.unsqueeze(1)
        log_odds = torch.log_softmax(logits, dim=-1)
        target = labels.unsqueeze(-1)
        losses = -(log_odds.gather(-1, target).squeeze(-1) * weights).sum(dim=1)
        back = log_odds.exp_()
        back.scatter_add_(-1, target, torch.full_like(target, -1, dtype=back.dtype))
        back *= weights.unsqueeze(-1)
        if masks is not None:
            back *= masks.unsqueeze(1)
        for index in range(len(self.layers) - 1, -1, -1):
            back = self.layers[index].backward(
                flat, sink, inputs[index], seen[index], back, first=index == 0
            )
        return losses


def _plain(module: nn.Conv2d) -> bool:
    """A square kernel, stride 1, no groups, and zero padding smaller than the kernel."""
    rows, columns = module.kernel_size
    return (
        rows == columns
        and module.stride == (1, 1)
        and module.dilation == (1, 1)
        and module.groups == 1
        and module.padding_mode == "zeros"
        and module.padding in [(p, p) for p in range(rows)]
    )


def _whole(module: nn.Flatten) -> bool:
    return (module.start_dim, module.end_dim) == (1, -1)


def _halves(module: nn.MaxPool2d) -> bool:
    sizes = (module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)
    return sizes == (2, 2, 0, 1, False)
