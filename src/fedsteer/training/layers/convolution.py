"""Convolutions of many clients at once: every client has its own filters.

    forward    y  = gather(x) w + b
    to input   dx = gather(dy) w^T
    to filter  dw = gather(x)^T dy      summed over samples and pixels

Images are (client, sample, row, column, channel), filters (client, row, column, channel in, channel
out). If 2 x 2 pooling follows, y is kept in pooled size beside which of the four pixels was largest
(the first, if several are: blank background makes many), and dy is spread by that. Activations grow
with their argument, so they follow the pooling, with a quarter of the work.

The functions here are torch's own, client after client; the threaded engine gives them one client
at a time. `convolution_kernels` has the same four by Triton.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsteer.training.layers import activate_

aten = torch.ops.aten


@dataclass(frozen=True)
class Window:
    """A square filter that moves over zero-padded images."""

    size: int
    stride: int = 1
    padding: int = 0

    def over(self, side: int) -> int:
        """How many places there are along a side."""
        return (side + 2 * self.padding - self.size) // self.stride + 1


def channels_last(images: Tensor) -> Tensor:
    """(..., channels, rows, columns) -> (..., rows, columns, channels), pixel after pixel.

    Flattening renews the strides; a single channel would keep one that torch reads as channels
    first.
    """
    moved = images.movedim(-3, -1)
    return moved.flatten().view(moved.shape)


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

    If it `pools`: the largest of each 2 x 2 square, and which of its pixels that was, as `spread`
    wants it. An odd row or column at the end is left out. `exact` asks for float32 products; it is
    for the kernels.
    """
    results = []
    for client, image in enumerate(images):
        own = None if bias is None else bias[client]
        kernel = filters[client].permute(3, 2, 0, 1)
        results.append(F.conv2d(_first(image), kernel, own, window.stride, window.padding))
    values, which = _stacked(results), None
    if pools:
        pooled, places = aten.max_pool2d_with_indices(_first(values.flatten(0, 1)), [2, 2], [2, 2])
        values, which = (_last(part).unflatten(0, values.shape[:2]) for part in (pooled, places))
    values = activate_(values, activation)
    return (values if beside is None else values + beside), which


def input_gradient(
    back: Tensor,
    filters: Tensor,
    window: Window,
    sides: tuple[int, int],
    exact: bool = True,
    beside: Tensor | None = None,
) -> Tensor:
    """(c, b, h', w', out) -> (c, b, h, w, in) for images of those sides, plus `beside`."""
    image = back.new_empty((back.shape[1], *sides, filters.shape[3]))  # only its shape matters
    pairs = zip(back, filters, strict=True)
    found = _stacked([_gradients(image, own, kernel, window, 0) for own, kernel in pairs])
    return found if beside is None else found + beside


def filter_gradient(
    images: Tensor, back: Tensor, window: Window, into: Tensor, exact: bool = True
) -> None:
    """(c, b, h, w, in), (c, b, h', w', out) -> (c, size, size, in, out), written to `into`."""
    if window.size == 1:  # torch 2.13 on a CPU writes past the end if such filters have a stride
        images = images[:, :, :: window.stride, :: window.stride].contiguous()
        window = replace(window, stride=1)
    for image, own, place in zip(images, back, into, strict=True):
        found = _gradients(image, own, place.to(image.dtype), window, 1)
        place.copy_(found.permute(2, 3, 1, 0))


def spread(back: Tensor, which: Tensor, sides: tuple[int, int]) -> Tensor:
    """A gradient of pooled size at the pixels it belongs to, zero elsewhere."""
    pooled, places = (_first(part.flatten(0, 1)) for part in (back, which))
    whole = _first(back.new_empty((len(pooled), *sides, back.shape[4])))  # only its shape matters
    result = aten.max_pool2d_with_indices_backward(
        pooled, whole, [2, 2], [2, 2], [0, 0], [1, 1], False, places
    )
    return _last(result).unflatten(0, back.shape[:2])


def _gradients(image: Tensor, back: Tensor, filters: Tensor, window: Window, which: int) -> Tensor:
    """The gradient of one client's images (0) or filters (1), in torch's order."""
    found: Sequence[Tensor] = aten.convolution_backward(
        _first(back), _first(image), filters.permute(3, 2, 0, 1), None, [window.stride] * 2,
        [window.padding] * 2, [1, 1], False, [0, 0], 1, [which == 0, which == 1, False],
    )  # fmt: skip
    return found[which]


def _first(images: Tensor) -> Tensor:
    """Channels first, as torch wants them; in memory they stay last, which pools faster."""
    return images.permute(0, 3, 1, 2)


def _last(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1)


def _stacked(clients: Sequence[Tensor]) -> Tensor:
    """Images of all clients, channels last; those of a single client are not copied."""
    return _last(clients[0])[None] if len(clients) == 1 else torch.stack([*map(_last, clients)])
