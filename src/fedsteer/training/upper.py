"""The layers above the first of stacked dense networks, under steps of plain SGD.

A bias is the weight of one more input that is always 1, so a layer is one matrix (out, in + 1) and
a step of it one product. Logits stand with classes before samples: along rows as short as these
torch takes a softmax several times more slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedsteer.training.convolution import activation_gradient
from fedsteer.training.layers import Linear


class Parts(NamedTuple):
    """The weights of a layer."""

    matrix: Tensor  # (c, out, in)
    bias: Tensor  # (c, out, 1)


@dataclass(frozen=True)
class _Layer:
    """One layer: weights, which the steps change, and the inputs of a batch."""

    weights: Tensor  # (c, out, in + 1)
    matrix: Tensor  # (c, out, in), a view without the bias
    bias: Tensor  # (c, out, 1), the rest
    inputs: Tensor  # (c, batch, in + 1), all 1 in the last column
    values: Tensor  # (c, batch, in), a view without that
    columns: Tensor  # (c, in + 1, batch), the inputs transposed
    before: str  # the activation that the inputs went through
    last: bool

    @staticmethod
    def empty(parts: Parts, before: str, last: bool, batch: int) -> _Layer:
        """Room for weights like these and a batch."""
        clients, outside, inside = parts.matrix.shape
        weights = parts.matrix.new_empty((clients, outside, inside + 1))
        inputs = parts.matrix.new_ones((clients, batch, inside + 1))
        matrix, bias, values = weights[:, :, :-1], weights[:, :, -1:], inputs[:, :, :-1]
        return _Layer(weights, matrix, bias, inputs, values, inputs.mT, before, last)

    def narrowed(self, batch: int) -> _Layer:
        """The same for a smaller batch."""
        inputs, values = self.inputs[:, :batch], self.values[:, :batch]
        return replace(self, inputs=inputs, values=values, columns=inputs.mT)


class Upper:
    """The layers of all clients; their memory is kept while clients and batches are as many."""

    def __init__(self, layers: Sequence[Linear], activation: str) -> None:
        """`activation` is that of the layer below."""
        self.layers, self.activation = layers, activation
        self.batch, self._clients = 0, 0
        self._full, self._layers = list[_Layer](), list[_Layer]()  # of a whole and the last batch
        self._starts: Sequence[Parts] = ()

    def begin(self, starts: Sequence[Parts], batch: int) -> None:
        """Clients start from these weights, layer by layer; no batch will be larger."""
        count = len(starts[0].bias) if starts else 0
        if (count, batch) != (self._clients, self.batch):
            self._clients, self.batch, before = count, batch, self.activation
            self._full.clear()
            for layer, parts in zip(self.layers, starts, strict=True):
                last = layer is self.layers[-1]
                self._full.append(_Layer.empty(parts, before, last, batch))
                before = layer.activation
        self._starts = starts
        for parts, room in zip(starts, self._full, strict=True):
            room.matrix.copy_(parts.matrix)
            room.bias.copy_(parts.bias)

    def forward(self, below: Tensor) -> Tensor:
        """(c, batch, out) of the layer below, before its activation -> (c, classes, batch)."""
        batch = below.shape[1]
        self._layers = self._full
        if batch < self.batch:
            self._layers = [layer.narrowed(batch) for layer in self._full]
        for layer in self._layers:
            _activate(below, layer.before, layer.values)
            if layer.last:
                return torch.bmm(layer.weights, layer.columns)
            below = torch.bmm(layer.inputs, layer.weights.mT)
        return below.mT

    def descend(self, back: Tensor, into: Tensor | None) -> Tensor:
        """A step; `back` (c, classes, batch) is rate times the gradient of the logits.

        Returns the same of what `forward` took, where wanted put `into` place.
        """
        given = back.mT
        if not self._layers:
            return given if into is None else into.copy_(given)
        lowest = self._layers[0]
        for layer in reversed(self._layers):
            further = torch.bmm(given, layer.matrix)
            layer.weights.baddbmm_(back if layer.last else given.mT, layer.inputs, alpha=-1)
            place = into if layer is lowest else None
            given = activation_gradient(layer.values, further, layer.before, place)
        return given

    def moved(self) -> list[Tensor]:
        """(c, ...) start - end of every matrix and bias, one after the other."""
        found = []
        for start, layer in zip(self._starts, self._full, strict=True):
            found.append((start.matrix - layer.matrix).flatten(1))
            found.append((start.bias - layer.bias).flatten(1))
        return found


def _activate(values: Tensor, activation: str, into: Tensor) -> None:
    if activation == "relu":
        torch.clamp_min(values, 0, out=into)
    elif activation == "tanh":
        torch.tanh(values, out=into)
    else:
        into.copy_(values)
