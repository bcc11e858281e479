"""Layers of many clients at once, forward and backward by formula.

Every layer takes stacked inputs (clients, samples, ...) and reads its parameters as views of the
stacked flat vectors (clients, d); `backward` writes its own gradient into the same places of
another such stack and returns the gradient for its input. No graph is built. An activation, and
the pooling after it, belong to the layer before them. Images lie with channels last; `Flatten`
restores the order that torch's modules expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsteer.training.convolution import (
    activate_,
    activation_gradient,
    convolve,
    filter_gradient,
    pool,
    turned,
    unpool,
)


@dataclass(frozen=True)
class Sink:
    """Where a gradient goes: flat <- flat + scale gradient, or flat <- gradient.

    With `adds` the flat vectors may be the parameters themselves: a step of plain SGD without the
    gradient ever being written down.
    """

    flat: Tensor
    adds: bool = False
    scale: float = 1.0

    def take(self, place: Tensor, gradient: Tensor) -> None:
        """The gradient of the parameters that lie at `place`, a view of `flat`."""
        if self.adds:
            place.add_(gradient, alpha=self.scale)
        else:
            place.copy_(gradient)

    def take_product(self, place: Tensor, left: Tensor, right: Tensor) -> None:
        """The same for left @ right, of one client or of stacked ones."""
        multiply = place.addmm_ if place.dim() == 2 else place.baddbmm_
        multiply(left, right, beta=int(self.adds), alpha=self.scale)


class Layer(Protocol):
    """One layer."""

    def forward(self, flat: Tensor, inputs: Tensor) -> tuple[Tensor, Any]:
        """Outputs, and what `backward` needs to see again besides the inputs."""

    def backward(
        self, flat: Tensor, sink: Sink, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        """The gradient for the inputs (unused if `first`); `sink` gets that of the parameters.

        Parameters are read before the sink gets anything: it may change them.
        """


@dataclass(frozen=True)
class Linear:
    """f(a W^T + b)."""

    inside: int
    outside: int
    weight: int  # where the weight matrix starts in the flat vector
    bias: int
    activation: str = ""

    def forward(self, flat: Tensor, inputs: Tensor) -> tuple[Tensor, Any]:
        matrix, bias = self._views(flat)
        outputs = torch.baddbmm(bias.unsqueeze(1), inputs, matrix.transpose(1, 2))
        return activate_(outputs, self.activation), outputs

    def backward(
        self, flat: Tensor, sink: Sink, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        matrix, _ = self._views(flat)
        into, into_bias = self._views(sink.flat)
        back = activation_gradient(seen, back, self.activation)
        further = back if first else torch.bmm(back, matrix)
        sink.take_product(into, back.transpose(1, 2), inputs)
        sink.take(into_bias, back.sum(dim=1))
        return further

    def _views(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        size = self.inside * self.outside
        matrix = flat[:, self.weight : self.weight + size]
        bias = flat[:, self.bias : self.bias + self.outside]
        return matrix.unflatten(1, (self.outside, self.inside)), bias


@dataclass(frozen=True)
class Convolution:
    """A square convolution of stride 1, its activation, and 2 x 2 pooling where `pools`."""

    inside: int
    outside: int
    size: int
    padding: int
    weight: int
    bias: int
    activation: str = ""
    pools: bool = False
    exact: bool = True  # float32 products; else tf32

    def forward(self, flat: Tensor, inputs: Tensor) -> tuple[Tensor, Any]:
        bias = flat[:, self.bias : self.bias + self.outside]
        how = (self.size, self.padding, self.exact)
        values = convolve(inputs, self._filters(flat), *how, bias, self.activation)
        pooled = pool(values) if self.pools else values
        return pooled, (values, pooled)

    def backward(
        self, flat: Tensor, sink: Sink, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        values, pooled = seen
        if self.pools:
            back = unpool(values, pooled, back, self.activation)
        else:
            back = activation_gradient(values, back, self.activation)
        found = filter_gradient(inputs, back, self.size, self.padding, self.exact)
        shaped = found.unflatten(1, (self.size, self.size, self.inside)).permute(0, 4, 3, 1, 2)
        further = back
        if not first:
            way_back = turned(self._filters(flat), self.size, self.inside)
            further = convolve(back, way_back, self.size, self.size - 1 - self.padding, self.exact)
        sink.take(self._weights(sink.flat), shaped)
        sink.take(sink.flat[:, self.bias : self.bias + self.outside], back.sum(dim=(1, 2, 3)))
        return further

    def _weights(self, flat: Tensor) -> Tensor:
        count = self.outside * self.inside * self.size * self.size
        part = flat[:, self.weight : self.weight + count]
        return part.unflatten(1, (self.outside, self.inside, self.size, self.size))

    def _filters(self, flat: Tensor) -> Tensor:
        """(clients, rows x columns x in, out), as `convolve` wants them."""
        return self._weights(flat).permute(0, 3, 4, 2, 1).reshape(len(flat), -1, self.outside)


@dataclass(frozen=True)
class Flatten:
    """Images to vectors, in the order channel, row, column."""

    def forward(self, flat: Tensor, inputs: Tensor) -> tuple[Tensor, Any]:
        return inputs.permute(0, 1, 4, 2, 3).flatten(2), None

    def backward(
        self, flat: Tensor, sink: Sink, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        height, width, channels = inputs.shape[2:]
        shaped = back.unflatten(2, (channels, height, width))
        return shaped.permute(0, 1, 3, 4, 2).contiguous()
