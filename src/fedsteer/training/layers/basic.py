"""Layers of many clients at once, forward and backward by formula.

Every layer takes stacked inputs (clients, samples, ...) and reads its parameters as views of the
stacked flat vectors (clients, d). `backward` passes the gradient of the parameters to `Flat` and
returns the gradient of its input. An activation, and the pooling after it, belong to the layer
before them. Images have channels last; `Flatten` restores the order that torch's modules expect.
Filters are views of shape (row, column, in, out). On a GPU they have that order in memory too
(`FormulaGradient.arrange`); on a CPU they keep torch's.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsteer.training.layers import activate_, activation_gradient, operations
from fedsteer.training.layers.convolution import Window


@dataclass(frozen=True)
class Flat:
    """The flat vectors of stacked clients: their parameters, and where the gradient of these goes.

    Without memory for the gradient, the weights take a step of plain SGD at once, and the gradient
    is never written down.
    """

    weights: Tensor
    gradient: Tensor | None = None
    rate: float = 0.0  # of that step
    short: Tensor | None = None  # the weights as convolutions read them, if that is in bfloat16
    exact: bool = True  # convolutions on a GPU multiply float32 numbers as such, not as tf32

    @property
    def into(self) -> Tensor:
        """The vector that changes: the gradient, or the weights."""
        return self.weights if self.gradient is None else self.gradient

    def take(self, place: Tensor, gradient: Tensor) -> None:
        """Take the gradient of the parameters at `place`, a view of `into`."""
        if self.gradient is None:
            place.add_(gradient, alpha=-self.rate)
        else:
            place.copy_(gradient)

    def take_product(self, place: Tensor, left: Tensor, right: Tensor) -> None:
        """The same for a gradient that is the product left @ right."""
        if self.gradient is None:
            place.baddbmm_(left, right, alpha=-self.rate)
        else:
            place.baddbmm_(left, right, beta=0)


class Layer(Protocol):
    """One layer."""

    def forward(self, flat: Flat, inputs: Tensor) -> tuple[Tensor, Any]:
        """Outputs, and what `backward` needs."""

    def backward(self, flat: Flat, seen: Any, back: Tensor, first: bool) -> Tensor:
        """The gradient of the inputs (unused if `first`); `flat` takes that of the parameters.

        A parameter is read before `flat` takes its gradient, because that may change it.
        """


@dataclass(frozen=True)
class Linear:
    """f(a W^T + b)."""

    inside: int
    outside: int
    weight: int  # where the weight matrix starts in the flat vector
    bias: int
    activation: str = ""

    def forward(self, flat: Flat, inputs: Tensor) -> tuple[Tensor, Any]:
        matrix, bias = self.views(flat.weights)
        outputs = torch.baddbmm(bias.unsqueeze(1), inputs, matrix.transpose(1, 2))
        return activate_(outputs, self.activation), (inputs, matrix, bias, outputs)

    def backward(self, flat: Flat, seen: Any, back: Tensor, first: bool) -> Tensor:
        inputs, matrix, bias, outputs = seen
        back = activation_gradient(outputs, back, self.activation)
        further = back if first else torch.bmm(back, matrix)
        if flat.gradient is not None:
            matrix, bias = self.views(flat.gradient)
        flat.take_product(matrix, back.transpose(1, 2), inputs)
        flat.take(bias, back.sum(dim=1))
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

    def forward(
        self, flat: Flat, inputs: Tensor, beside: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        values, which = operations(inputs, "convolution").convolve(
            inputs,
            self.filters(flat.weights if flat.short is None else flat.short),
            self.window,
            flat.exact,
            self.offset(flat.weights),
            self.activation,
            self.pools,
            beside,
        )
        return values, (inputs, values if self.activation else None, which)

    def backward(
        self, flat: Flat, seen: Any, back: Tensor, first: bool, beside: Tensor | None = None
    ) -> Tensor:
        inputs, values, which = seen
        back = activation_gradient(values, back, self.activation)
        offset = self.offset(flat.into)
        if offset is not None:
            flat.take(offset, back.sum(dim=(1, 2, 3)))
        sides = (inputs.shape[2], inputs.shape[3])
        if which is not None:
            whole = self.window.over(sides[0]), self.window.over(sides[1])
            back = operations(back, "convolution").spread(back, which, whole)
        further = back
        if not first:
            filters = self.filters(flat.weights if flat.short is None else flat.short)
            further = operations(back, "convolution").input_gradient(
                back, filters, self.window, sides, flat.exact, beside
            )
        into = self.filters(flat.into)
        found = torch.empty_like(into) if flat.gradient is None else into
        operations(inputs, "convolution").filter_gradient(
            inputs, back, self.window, found, flat.exact
        )
        if flat.gradient is None:
            flat.take(into, found)
        return further

    def filters(self, flat: Tensor) -> Tensor:
        """(clients, rows, columns, in, out), a view."""
        size = self.window.size
        own = flat[:, self.weight : self.weight + self.outside * self.inside * size**2]
        if flat.is_cuda:
            return own.unflatten(1, (size, size, self.inside, self.outside))
        return own.unflatten(1, (self.outside, self.inside, size, size)).permute(0, 3, 4, 2, 1)

    def offset(self, flat: Tensor) -> Tensor | None:
        """(clients, out) biases, a view."""
        return None if self.bias < 0 else flat[:, self.bias : self.bias + self.outside]


@dataclass(frozen=True)
class Flatten:
    """Images to vectors, in the order channel, row, column."""

    def forward(self, flat: Flat, inputs: Tensor) -> tuple[Tensor, Any]:
        return inputs.permute(0, 1, 4, 2, 3).flatten(2), inputs.shape

    def backward(self, flat: Flat, seen: Any, back: Tensor, first: bool) -> Tensor:
        height, width, channels = seen[2:]
        shaped = back.unflatten(2, (channels, height, width))
        return shaped.permute(0, 1, 3, 4, 2).contiguous()
