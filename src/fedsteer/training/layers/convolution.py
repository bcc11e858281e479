"""Convolutions of many clients at once: every client has its own filters.

Libraries see this as one grouped convolution, which they do slowly. Here a client's convolution is
a matrix product whose left side is gathered on the fly (implicit GEMM), one Triton program per tile
of output pixels, all clients in one launch (`convolution_kernels`). Images lie as (client, sample,
row, column, channel), filters as (client, row, column, channel in, channel out).

    forward    y  = gather(x) w + b
    to input   dx = gather(dy) w^T
    to filter  dw = gather(x)^T dy      summed over samples and pixels

Where 2 x 2 pooling follows, y is kept in pooled size beside which of the four pixels was largest
(of equal ones the first: blank background makes many), and dy is spread by that.

Without Triton the same functions are computed by torch (`reference_*`): slow and obvious, they are
what the kernels are tested against.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsteer.gpu import kernels_beside

KERNELS = "fedsteer.training.layers.convolution_kernels"
# Found once: a call is short.
_threshold_backward = torch.ops.aten.threshold_backward.default
_threshold_backward_into = torch.ops.aten.threshold_backward.grad_input


@dataclass(frozen=True)
class Window:
    """A square filter that moves over zero-padded images."""

    size: int
    stride: int = 1
    padding: int = 0

    def over(self, side: int) -> int:
        """How many places there are along a side."""
        return (side + 2 * self.padding - self.size) // self.stride + 1


def convolve(
    images: Tensor,
    filters: Tensor,
    window: Window,
    exact: bool = True,
    bias: Tensor | None = None,
    activation: str = "",
    beside: Tensor | None = None,
) -> Tensor:
    """f((c, b, h, w, in) * (c, size, size, in, out) + bias) -> (c, b, h', w', out).

    `exact` asks for float32 products where tf32 would do; `beside` is added to the result.
    """
    if kernels := kernels_beside(images, KERNELS):
        result: Tensor = kernels.convolve(
            images, filters, window, exact, bias, activation, False, beside
        )[0]
        return result
    result = reference_convolve(images, filters, window, bias, activation)
    return result if beside is None else result + beside


def convolve_and_pool(
    images: Tensor,
    filters: Tensor,
    window: Window,
    exact: bool = True,
    bias: Tensor | None = None,
    activation: str = "",
) -> tuple[Tensor, Tensor]:
    """`convolve`, the largest of each 2 x 2 square, and which of its four pixels that was (int8).

    An odd row or column at the end is left out.
    """
    if kernels := kernels_beside(images, KERNELS):
        pooled, which = kernels.convolve(
            images, filters, window, exact, bias, activation, True, None
        )
        return pooled, which
    return reference_pool(reference_convolve(images, filters, window, bias, activation))


def input_gradient(
    back: Tensor,
    filters: Tensor,
    window: Window,
    sides: tuple[int, int],
    exact: bool = True,
    beside: Tensor | None = None,
) -> Tensor:
    """(c, b, h', w', out) -> (c, b, h, w, in) for images of those sides, plus `beside`."""
    if kernels := kernels_beside(back, KERNELS):
        result: Tensor = kernels.input_gradient(back, filters, window, sides, exact, beside)
        return result
    result = reference_input_gradient(back, filters, window, sides)
    return result if beside is None else result + beside


def filter_gradient(
    images: Tensor, back: Tensor, window: Window, into: Tensor, exact: bool = True
) -> None:
    """(c, b, h, w, in), (c, b, h', w', out) -> (c, size, size, in, out), written to `into`."""
    if kernels := kernels_beside(images, KERNELS):
        kernels.filter_gradient(images, back, window, into, exact)
    else:
        into.copy_(reference_filter_gradient(images, back, window))


def spread(back: Tensor, which: Tensor, sides: tuple[int, int]) -> Tensor:
    """A gradient of pooled size at the pixels it belongs to, zero elsewhere."""
    if kernels := kernels_beside(back, KERNELS):
        found: Tensor = kernels.spread(back, which, sides)
        return found
    return reference_spread(back, which, sides)


def activation_gradient(
    outputs: Tensor, back: Tensor, activation: str, into: Tensor | None = None
) -> Tensor:
    """The gradient before an activation whose outputs these are, where wanted put `into` place."""
    if activation == "relu":
        found: Tensor = (
            _threshold_backward(back, outputs, 0)
            if into is None
            else _threshold_backward_into(back, outputs, 0, grad_input=into)
        )
        return found
    if activation == "tanh":
        return torch.mul(back, 1 - outputs * outputs, out=into)
    return back if into is None else into.copy_(back)


def activate_(values: Tensor, activation: str) -> Tensor:
    """The activation, in place."""
    if activation == "relu":
        return values.relu_()
    return values.tanh_() if activation == "tanh" else values


def reference_convolve(
    images: Tensor,
    filters: Tensor,
    window: Window,
    bias: Tensor | None = None,
    activation: str = "",
) -> Tensor:
    """`convolve` as one torch convolution per client."""
    results = []
    for client, image in enumerate(images):
        kernel = filters[client].permute(3, 2, 0, 1)
        own = None if bias is None else bias[client]
        moved = F.conv2d(image.permute(0, 3, 1, 2), kernel, own, window.stride, window.padding)
        results.append(moved.permute(0, 2, 3, 1))
    return activate_(torch.stack(results), activation)


def reference_input_gradient(
    back: Tensor, filters: Tensor, window: Window, sides: tuple[int, int]
) -> Tensor:
    """`input_gradient` as torch knows it."""
    results = []
    for client, gradient in enumerate(back):
        kernel = filters[client].permute(3, 2, 0, 1)
        shape = torch.Size((len(gradient), kernel.shape[1], *sides))
        moved = torch.nn.grad.conv2d_input(
            shape, kernel, gradient.permute(0, 3, 1, 2), window.stride, window.padding
        )
        results.append(moved.permute(0, 2, 3, 1))
    return torch.stack(results)


def reference_filter_gradient(images: Tensor, back: Tensor, window: Window) -> Tensor:
    """`filter_gradient` from explicit patches."""
    size, (clients, samples, _, _, inside) = window.size, images.shape
    flat = images.flatten(0, 1).permute(0, 3, 1, 2)
    patches = F.unfold(flat, size, padding=window.padding, stride=window.stride)
    patches = patches.view(clients, samples, inside, size * size, -1)
    left = patches.permute(0, 3, 2, 1, 4).reshape(clients, size * size * inside, -1)
    found = torch.bmm(left, back.reshape(clients, -1, back.shape[4]))
    return found.view(clients, size, size, inside, -1)


def reference_pool(images: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of every square, and the first place in it where that stands."""
    squares = _squares(images)
    pooled = squares.amax(dim=4)
    return pooled, (squares == pooled.unsqueeze(4)).byte().argmax(dim=4).to(torch.int8)


def _squares(images: Tensor) -> Tensor:
    """(c, b, height, width, 4, channels) the pixels of every square."""
    height, width = images.shape[2] // 2, images.shape[3] // 2
    parts = [
        images[:, :, row : 2 * height : 2, column : 2 * width : 2]
        for row in (0, 1)
        for column in (0, 1)
    ]
    return torch.stack(parts, dim=4)


def reference_spread(back: Tensor, which: Tensor, sides: tuple[int, int]) -> Tensor:
    """`spread`, place by place."""
    result = back.new_zeros((*back.shape[:2], *sides, back.shape[4]))
    height, width = back.shape[2:4]
    for place in range(4):
        into = result[:, :, place // 2 : 2 * height : 2, place % 2 : 2 * width : 2]
        into.copy_(back * (which == place))
    return result
