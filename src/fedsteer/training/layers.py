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
    convolve_and_pool,
    filter_gradient,
    turned,
)


class Layer(Protocol):
    """One layer."""

    def forward(self, flat: Tensor, inputs: Tensor) -> tuple[Tensor, Any]:
        """Outputs, and what `backward` needs to see again besides the inputs."""

    def backward(
        self, flat: Tensor, gradient: Tensor, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        """The gradient for the inputs (unused if `first`); writes that of the parameters."""


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
        self, flat: Tensor, gradient: Tensor, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        matrix, _ = self._views(flat)
        into, into_bias = self._views(gradient)
        back = activation_gradient(seen, back, self.activation)
        into.copy_(torch.bmm(back.transpose(1, 2), inputs))
        into_bias.copy_(back.sum(dim=1))
        return back if first else torch.bmm(back, matrix)

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
        filters = self._filters(flat)
        if self.pools:
            pooled, which = convolve_and_pool(inputs, filters, *how, bias, self.activation)
            return pooled, (pooled, which)
        values = convolve(inputs, filters, *how, bias, self.activation)
        return values, (values, None)

    def backward(
        self, flat: Tensor, gradient: Tensor, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        values, which = seen
        back = activation_gradient(values, back, self.activation)
        how = (self.size, self.padding, self.exact)
        found = filter_gradient(inputs, back, *how, which)
        shaped = found.unflatten(1, (self.size, self.size, self.inside)).permute(0, 4, 3, 1, 2)
        self._weights(gradient).copy_(shaped)
        gradient[:, self.bias : self.bias + self.outside] = back.sum(dim=(1, 2, 3))
        if first:
            return back
        way_back = turned(self._filters(flat), self.size, self.inside)
        rows, columns = (side + 2 * self.padding - self.size + 1 for side in inputs.shape[2:4])
        spread = None if which is None else (which, rows, columns)
        return convolve(
            back, way_back, self.size, self.size - 1 - self.padding, self.exact, spread=spread
        )

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
        self, flat: Tensor, gradient: Tensor, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        height, width, channels = inputs.shape[2:]
        shaped = back.unflatten(2, (channels, height, width))
        return shaped.permute(0, 1, 3, 4, 2).contiguous()
