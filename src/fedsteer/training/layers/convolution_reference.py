"""The functions of `convolution_kernels` in plain torch, which the kernels are tested against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsteer.training.layers.activations import activate_

if TYPE_CHECKING:
    from fedsteer.training.layers.convolution import Window


def convolve(
    images: Tensor,
    filters: Tensor,
    window: Window,
    exact: bool = True,
    bias: Tensor | None = None,
    activation: str = "",
    pools: bool = False,
    beside: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """f((c, b, h, w, in) * (c, size, size, in, out) + bias) -> (c, b, h', w', out), plus `beside`.

    If it `pools`: the largest of each 2 x 2 square, and which of its four pixels that was (int8).
    An odd row or column at the end is left out. `exact` asks for float32 products; it is for the
    kernels.
    """
    results = []
    for client, image in enumerate(images):
        kernel = filters[client].permute(3, 2, 0, 1)
        own = None if bias is None else bias[client]
        moved = F.conv2d(image.permute(0, 3, 1, 2), kernel, own, window.stride, window.padding)
        results.append(moved.permute(0, 2, 3, 1))
    values = activate_(torch.stack(results), activation)
    if pools:
        return pool(values)
    return (values if beside is None else values + beside), None


def input_gradient(
    back: Tensor,
    filters: Tensor,
    window: Window,
    sides: tuple[int, int],
    exact: bool = True,
    beside: Tensor | None = None,
) -> Tensor:
    """(c, b, h', w', out) -> (c, b, h, w, in) for images of those sides, plus `beside`."""
    results = []
    for client, gradient in enumerate(back):
        kernel = filters[client].permute(3, 2, 0, 1)
        shape = torch.Size((len(gradient), kernel.shape[1], *sides))
        moved = torch.nn.grad.conv2d_input(
            shape, kernel, gradient.permute(0, 3, 1, 2), window.stride, window.padding
        )
        results.append(moved.permute(0, 2, 3, 1))
    found = torch.stack(results)
    return found if beside is None else found + beside


def filter_gradient(
    images: Tensor, back: Tensor, window: Window, into: Tensor, exact: bool = True
) -> None:
    """(c, b, h, w, in), (c, b, h', w', out) -> (c, size, size, in, out), written to `into`."""
    size, (clients, samples, _, _, inside) = window.size, images.shape
    flat = images.flatten(0, 1).permute(0, 3, 1, 2)
    patches = F.unfold(flat, size, padding=window.padding, stride=window.stride)
    patches = patches.view(clients, samples, inside, size * size, -1)
    left = patches.permute(0, 3, 2, 1, 4).reshape(clients, size * size * inside, -1)
    found = torch.bmm(left, back.reshape(clients, -1, back.shape[4]))
    into.copy_(found.view(clients, size, size, inside, -1))


def spread(back: Tensor, which: Tensor, sides: tuple[int, int]) -> Tensor:
    """A gradient of pooled size at the pixels it belongs to, zero elsewhere."""
    result = back.new_zeros((*back.shape[:2], *sides, back.shape[4]))
    height, width = back.shape[2:4]
    for place in range(4):
        into = result[:, :, place // 2 : 2 * height : 2, place % 2 : 2 * width : 2]
        into.copy_(back * (which == place))
    return result


def pool(images: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of every square, and the first place in it that has it."""
    height, width = images.shape[2] // 2, images.shape[3] // 2
    corners = [
        images[:, :, row : 2 * height : 2, column : 2 * width : 2]
        for row in (0, 1)
        for column in (0, 1)
    ]
    squares = torch.stack(corners, dim=4)
    pooled = squares.amax(dim=4)
    return pooled, (squares == pooled.unsqueeze(4)).byte().argmax(dim=4).to(torch.int8)
