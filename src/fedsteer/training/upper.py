"""The layers above the first of stacked dense networks, under steps of plain SGD.

A bias is the weight of one more input that is always 1, so a layer is one matrix (out, in + 1) and
a step of it one product. Logits stand with classes before samples: along rows as short as these
torch takes a softmax several times more slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsteer.training.convolution import activation_gradient
from fedsteer.training.layers import Linear


@dataclass(frozen=True)
class _Layer:
    """One layer: weights, which the steps change, and the inputs of a batch."""

    weights: Tensor  # (c, out, in + 1)
    matrix: Tensor  # (c, out, in), a view without the bias
    inputs: Tensor  # (c, batch, in + 1), all 1 in the last column
    values: Tensor  # (c, batch, in), a view without that
    before: str  # the activation that the inputs went through
    last: bool

    def narrowed(self, batch: int) -> _Layer:
        """The same for a smaller batch."""
        inputs, values = self.inputs[:, :batch], self.values[:, :batch]
        return _Layer(self.weights, self.matrix, inputs, values, self.before, self.last)


class Upper:
    """The layers of all clients."""

    def __init__(
        self, layers: Sequence[Linear], activation: str, starts: Tensor, batch: int
    ) -> None:
        """`activation` is that of the layer below; `starts` (c, d); no batch is larger."""
        self.starts = [(layer, parts_of(layer, starts)) for layer in layers]
        self.batch, self._full = batch, list[_Layer]()
        for layer, parts in self.starts:
            weights = torch.cat(parts, dim=2)
            inputs = starts.new_ones((len(starts), batch, layer.inside + 1))
            matrix, values = weights[:, :, :-1], inputs[:, :, :-1]
            last = layer is layers[-1]
            self._full.append(_Layer(weights, matrix, inputs, values, activation, last))
            activation = layer.activation
        self._layers = self._full  # as the last batch used them

    def forward(self, below: Tensor) -> Tensor:
        """(c, batch, out) of the layer below, before its activation -> (c, classes, batch)."""
        batch = below.shape[1]
        self._layers = self._full
        if batch < self.batch:
            self._layers = [layer.narrowed(batch) for layer in self._full]
        for layer in self._layers:
            _activate(below, layer.before, layer.values)
            if layer.last:
                return torch.bmm(layer.weights, layer.inputs.mT)
            below = torch.bmm(layer.inputs, layer.weights.mT)
        return below.mT

    def descend(self, back: Tensor) -> Tensor:
        """A step; `back` (c, classes, batch) is rate times the gradient of the logits.

        Returns the same of what `forward` took.
        """
        for layer in reversed(self._layers):
            further = torch.bmm(back.mT, layer.matrix)
            layer.weights.baddbmm_(back, layer.inputs, alpha=-1)
            back = activation_gradient(layer.values, further, layer.before).mT
        return back.mT

    def subtract(self, updates: Tensor) -> None:
        """start - end, to where the weights lie in `updates`."""
        for (place, parts), layer in zip(self.starts, self._full, strict=True):
            matrix, bias = parts_of(place, updates)
            torch.sub(parts[0], layer.matrix, out=matrix)
            torch.sub(parts[1], layer.weights[:, :, -1:], out=bias)


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
