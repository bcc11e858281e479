"""Layers of many clients at once, forward and backward by formula.

Every layer takes stacked inputs (clients, samples, ...) and reads its parameters as views of the
stacked flat vectors (clients, d). `backward` passes its own gradient to a `Sink` of that shape and
returns the gradient of its input. An activation, and the pooling after it, belong to the layer
before them. Images have channels last, filters are (row, column, in, out); `Flatten` restores the
order that torch's modules expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedsteer.training.layers.activations import activate_, activation_gradient
from fedsteer.training.layers.convolution import Window, operations


class Weights(NamedTuple):
    """Stacked parameters, and the same numbers as convolutions read them (maybe bfloat16)."""

    full: Tensor
    short: Tensor


@dataclass(frozen=True)
class Sink:
    """Where a gradient goes: flat <- flat + scale gradient, or flat <- gradient.

    With `adds` the flat vectors may be the parameters themselves: a step of plain SGD that never
    writes the gradient down.
    """

    flat: Tensor
    adds: bool = False
    scale: float = 1.0

    def take(self, place: Tensor, gradient: Tensor) -> None:
        """The gradient of the parameters at `place`, a view of `flat`."""
        if self.adds:
            place.add_(gradient, alpha=self.scale)
        else:
            place.copy_(gradient)

    def take_product(self, place: Tensor, left: Tensor, right: Tensor) -> None:
        """The same for the gradient left @ right."""
        place.baddbmm_(left, right, beta=int(self.adds), alpha=self.scale)


class Layer(Protocol):
    """One layer."""

    def forward(self, weights: Weights, inputs: Tensor) -> tuple[Tensor, Any]:
        """Outputs, and what `backward` needs to see again besides the inputs."""

    def backward(
        self, weights: Weights, sink: Sink, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        """The gradient of the inputs (unused if `first`); `sink` gets that of the parameters.

        Parameters are read before the sink gets anything, because it may change them.
        """


@dataclass(frozen=True)
class Linear:
    """f(a W^T + b)."""

    inside: int
    outside: int
    weight: int  # where the weight matrix starts in the flat vector
    bias: int
    activation: str = ""

    def forward(self, weights: Weights, inputs: Tensor) -> tuple[Tensor, Any]:
        matrix, bias = self.views(weights.full)
        outputs = torch.baddbmm(bias.unsqueeze(1), inputs, matrix.transpose(1, 2))
        return activate_(outputs, self.activation), outputs

    def backward(
        self, weights: Weights, sink: Sink, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        into, into_bias = self.views(sink.flat)
        matrix = into if sink.flat is weights.full else self.views(weights.full)[0]
        back = activation_gradient(seen, back, self.activation)
        further = back if first else torch.bmm(back, matrix)
        sink.take_product(into, back.transpose(1, 2), inputs)
        sink.take(into_bias, back.sum(dim=1))
        return further

    def views(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """(c, out, in) weight matrices and (c, out) biases."""
        size = self.inside * self.outside
        matrix = flat[:, self.weight : self.weight + size]
        bias = flat[:, self.bias : self.bias + self.outside]
        return matrix.unflatten(1, (self.outside, self.inside)), bias


@dataclass(frozen=True)
class Convolution:
    """A square convolution, its activation, and 2 x 2 pooling if it `pools`."""

    inside: int
    outside: int
    window: Window
    weight: int
    bias: int = -1  # none
    activation: str = ""
    pools: bool = False
    exact: bool = True  # float32 products; else tf32, or bfloat16 if the inputs are

    def forward(
        self, weights: Weights, inputs: Tensor, beside: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        values, which = operations(inputs).convolve(
            inputs,
            self.filters(weights.short),
            self.window,
            self.exact,
            self.offset(weights.full),
            self.activation,
            self.pools,
            beside,
        )
        return values, (values, which)

    def backward(
        self,
        weights: Weights,
        sink: Sink,
        inputs: Tensor,
        seen: Any,
        back: Tensor,
        first: bool,
        beside: Tensor | None = None,
    ) -> Tensor:
        values, which = seen
        back = activation_gradient(values, back, self.activation)
        offset = None if self.bias < 0 else back.sum(dim=(1, 2, 3))
        sides = (inputs.shape[2], inputs.shape[3])
        if which is not None:
            whole = self.window.over(sides[0]), self.window.over(sides[1])
            back = operations(back).spread(back, which, whole)
        further = back
        if not first:
            filters = self.filters(weights.short)
            further = operations(back).input_gradient(
                back, filters, self.window, sides, self.exact, beside
            )
        into = self.filters(sink.flat)
        found = torch.empty_like(into) if sink.adds else into
        operations(inputs).filter_gradient(inputs, back, self.window, found, self.exact)
        if sink.adds:
            sink.take(into, found)
        if offset is not None:
            sink.take(sink.flat[:, self.bias : self.bias + self.outside], offset)
        return further

    def filters(self, flat: Tensor) -> Tensor:
        """(clients, rows, columns, in, out), a view."""
        shape = (self.window.size, self.window.size, self.inside, self.outside)
        count = self.outside * self.inside * self.window.size**2
        return flat[:, self.weight : self.weight + count].unflatten(1, shape)

    def offset(self, flat: Tensor) -> Tensor | None:
        """(clients, out) biases, a view."""
        return None if self.bias < 0 else flat[:, self.bias : self.bias + self.outside]


@dataclass(frozen=True)
class Flatten:
    """Images to vectors, in the order channel, row, column."""

    def forward(self, weights: Weights, inputs: Tensor) -> tuple[Tensor, Any]:
        return inputs.permute(0, 1, 4, 2, 3).flatten(2), None

    def backward(
        self, weights: Weights, sink: Sink, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        height, width, channels = inputs.shape[2:]
        shaped = back.unflatten(2, (channels, height, width))
        return shaped.permute(0, 1, 3, 4, 2).contiguous()
