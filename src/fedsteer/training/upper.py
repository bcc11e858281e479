"""The layers above the first of stacked dense networks, under steps of plain SGD.

A bias is the weight of one more input that is always 1, so a layer is one matrix (out, in + 1) and
a step of it one product. Logits stand with classes before samples: along rows as short as these
torch takes a softmax several times more slowly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsteer.training.convolution import activation_gradient
from fedsteer.training.layers import Linear


class Upper:
    """Weights of all clients, which the steps change, and room for the inputs of a batch."""

    def __init__(self, layers: Sequence[Linear], starts: Tensor, batch: int) -> None:
        self.layers, self.starts = layers, starts  # (c, d)
        self.weights = [torch.cat(parts_of(layer, starts), dim=2) for layer in layers]
        self._room = [
            starts.new_ones((len(starts), batch, layer.inside + 1)) for layer in layers
        ]
        self._inputs = self._room  # as much of it as the last batch took

    def forward(self, below: Tensor, activation: str) -> Tensor:
        """(c, batch, out) of the first layer before its activation -> (c, classes, batch)."""
        self._inputs = [room[:, : below.shape[1]] for room in self._room]
        for layer, weights, inputs in zip(self.layers, self.weights, self._inputs, strict=True):
            _activate(below, activation, inputs[:, :, :-1])
            if layer is self.layers[-1]:
                return torch.bmm(weights, inputs.mT)
            below, activation = torch.bmm(inputs, weights.mT), layer.activation
        return below.mT

    def descend(self, back: Tensor, activation: str) -> Tensor:
        """A step; `back` (c, classes, batch) is rate times the gradient of the logits.

        Returns the same of the first layer's outputs, (c, batch, out).
        """
        for place in range(len(self.layers) - 1, -1, -1):
            weights, inputs = self.weights[place], self._inputs[place]
            below = torch.bmm(back.mT, weights[:, :, :-1])
            weights.baddbmm_(back, inputs, alpha=-1)
            before = self.layers[place - 1].activation if place else activation
            back = activation_gradient(inputs[:, :, :-1], below, before).mT
        return back.mT

    def subtract(self, updates: Tensor) -> None:
        """start - end into the places of the weights in `updates`."""
        for layer, weights in zip(self.layers, self.weights, strict=True):
            matrix, bias = parts_of(layer, updates)
            started, started_bias = parts_of(layer, self.starts)
            torch.sub(started, weights[:, :, :-1], out=matrix)
            torch.sub(started_bias, weights[:, :, -1:], out=bias)


def parts_of(layer: Linear, flat: Tensor) -> tuple[Tensor, Tensor]:
    """(c, out, in) and (c, out, 1), views of (c, d)."""
    matrix = flat[:, layer.weight : layer.weight + layer.inside * layer.outside]
    bias = flat[:, layer.bias : layer.bias + layer.outside]
    return matrix.view(-1, layer.outside, layer.inside), bias.unsqueeze(2)


def _activate(values: Tensor, activation: str, into: Tensor) -> None:
    if activation == "relu":
        torch.clamp_min(values, 0, out=into)
    elif activation == "tanh":
        torch.tanh(values, out=into)
    else:
        into.copy_(values)
