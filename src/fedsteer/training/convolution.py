"""Convolutions of many clients at once: every client has its own filters.

Libraries see this as one grouped convolution, which they do slowly. Here a client's convolution is
a matrix product whose left side is gathered on the fly (implicit GEMM), one Triton program per tile
of output pixels, all clients in one launch (`convolution_kernels`). Images lie as (client, sample,
row, column, channel), filters as (client, row x column x channel in, channel out).

    forward    y  = gather(x) w + b
    to input   dx = gather(dy) w'       the same kernel, filters turned by 180 degrees
    to filter  dw = gather(x)^T dy      a second kernel, summed over samples and pixels

Where 2 x 2 pooling follows, y is kept in pooled size beside which of the four pixels was largest
(of equal ones the first: blank background makes many), and dy is spread by that.

Without Triton the same functions are computed by torch (`reference_*`): slow and obvious, they are
what the kernels are tested against.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def convolve(
    images: Tensor,
    filters: Tensor,
    size: int,
    padding: int,
    exact: bool,
    bias: Tensor | None = None,
    activation: str = "",
    spread: tuple[Tensor, int, int] | None = None,
) -> Tensor:
    """f((c, b, h, w, in) * (c, size * size * in, out) + bias) -> (c, b, h', w', out).

    `spread` (which, rows, columns): the images are a gradient of pooled size, to be spread first.
    """
    if images.is_cuda and (kernels := _kernels()):
        result, _ = kernels.convolve(
            images, filters, size, padding, exact, bias, activation, False, spread
        )
        found: Tensor = result
        return found
    if spread is not None:
        images = reference_spread(images, *spread)
    return reference_convolve(images, filters, size, padding, bias, activation)


def convolve_and_pool(
    images: Tensor,
    filters: Tensor,
    size: int,
    padding: int,
    exact: bool,
    bias: Tensor | None = None,
    activation: str = "",
) -> tuple[Tensor, Tensor]:
    """`convolve`, the largest of each 2 x 2 square, and which of its four pixels that was (int8).

    An odd row or column at the end is left out.
    """
    if images.is_cuda and (kernels := _kernels()):
        pooled, which = kernels.convolve(
            images, filters, size, padding, exact, bias, activation, True, None
        )
        return pooled, which
    return reference_pool(reference_convolve(images, filters, size, padding, bias, activation))


def filter_gradient(
    images: Tensor,
    back: Tensor,
    size: int,
    padding: int,
    exact: bool,
    which: Tensor | None = None,
) -> Tensor:
    """(c, b, h, w, in), (c, b, h', w', out) -> (c, size * size * in, out).

    With `which`, the gradient `back` is of pooled size.
    """
    if images.is_cuda and (kernels := _kernels()):
        found: Tensor = kernels.filter_gradient(images, back, size, padding, exact, which)
        return found
    if which is not None:
        rows, columns = (side + 2 * padding - size + 1 for side in images.shape[2:4])
        back = reference_spread(back, which, rows, columns)
    return reference_filter_gradient(images, back, size, padding)


def activation_gradient(outputs: Tensor, back: Tensor, activation: str) -> Tensor:
    """The gradient before an activation whose outputs these are."""
    if activation == "relu":
        return back * (outputs > 0)
    if activation == "tanh":
        return back * (1 - outputs * outputs)
    return back


def activate_(values: Tensor, activation: str) -> Tensor:
    """The activation, in place."""
    if activation == "relu":
        return values.relu_()
    return values.tanh_() if activation == "tanh" else values


def turned(filters: Tensor, size: int, inside: int) -> Tensor:
    """Filters for the way back: turned by 180 degrees, input and output swapped."""
    clients, _, outside = filters.shape
    shaped = filters.view(clients, size, size, inside, outside).flip(1, 2).transpose(3, 4)
    return shaped.reshape(clients, size * size * outside, inside)


def reference_convolve(
    images: Tensor,
    filters: Tensor,
    size: int,
    padding: int,
    bias: Tensor | None = None,
    activation: str = "",
) -> Tensor:
    """`convolve` as one torch convolution per client."""
    results = []
    for client, image in enumerate(images):
        kernel = filters[client].view(size, size, images.shape[4], -1).permute(3, 2, 0, 1)
        own = None if bias is None else bias[client]
        moved = F.conv2d(image.permute(0, 3, 1, 2), kernel, own, padding=padding)
        results.append(moved.permute(0, 2, 3, 1))
    return activate_(torch.stack(results), activation)


def reference_filter_gradient(images: Tensor, back: Tensor, size: int, padding: int) -> Tensor:
    """`filter_gradient` from explicit patches."""
    clients, samples, inside = images.shape[0], images.shape[1], images.shape[4]
    flat = images.flatten(0, 1).permute(0, 3, 1, 2)
    patches = F.unfold(flat, size, padding=padding).view(clients, samples, inside, size * size, -1)
    left = patches.permute(0, 3, 2, 1, 4).reshape(clients, size * size * inside, -1)
    return torch.bmm(left, back.reshape(clients, -1, back.shape[4]))


def reference_pool(images: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of every square, and the first place in it where that stands."""
    height, width = images.shape[2] // 2, images.shape[3] // 2
    whole = images[:, :, : 2 * height, : 2 * width].unflatten(3, (width, 2))
    squares = whole.unflatten(2, (height, 2)).movedim(5, 4).flatten(3, 4)
    pooled = squares.amax(dim=3)
    return pooled, (squares == pooled.unsqueeze(3)).byte().argmax(dim=3).to(torch.int8)


def reference_spread(back: Tensor, which: Tensor, rows: int, columns: int) -> Tensor:
    """A gradient of pooled size at the pixels it belongs to, zero elsewhere."""
    result = back.new_zeros((*back.shape[:2], rows, columns, back.shape[4]))
    height, width = back.shape[2:4]
    for place in range(4):
        into = result[:, :, place // 2 : 2 * height : 2, place % 2 : 2 * width : 2]
        into.copy_(back * (which == place))
    return result


@cache
def _kernels() -> Any:
    """The Triton kernels, where there is Triton."""
    if find_spec("triton") is None:
        return None
    return import_module("fedsteer.training.convolution_kernels")
