"""Convolutions of many clients at once: every client has its own filters.

Libraries see this as one grouped convolution, which they do slowly. Here a client's convolution is
a matrix product whose left side is gathered on the fly (implicit GEMM), one Triton program per tile
of output pixels, all clients in one launch. Images lie as (client, sample, row, column, channel),
filters as (client, row x column x channel in, channel out).

    forward    y  = gather(x) w + b
    to input   dx = gather(dy) w'       the same kernel, filters turned by 180 degrees
    to filter  dw = gather(x)^T dy      a second kernel, summed over samples and pixels

Without Triton the same three functions are computed by torch (`reference_*`): slow and obvious,
they are what the kernels are tested against.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

try:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice
except ModuleNotFoundError:  # a CPU has no use for it
    triton = None


ACTIVATIONS = {"": 0, "relu": 1, "tanh": 2}
PIXELS, FILTER_PIXELS = 128, 64
FILTER_DEPTH, FILTER_WARPS, FILTER_PROGRAMS = 32, 2, 2_048
"""Tile sizes of the two products, chosen by measuring on an H200 (benchmarks/client_step.py)."""


def convolve(
    images: Tensor,
    filters: Tensor,
    size: int,
    padding: int,
    exact: bool,
    bias: Tensor | None = None,
    activation: str = "",
) -> Tensor:
    """f((c, b, h, w, in) * (c, size * size * in, out) + bias) -> (c, b, h', w', out)."""
    if triton is None or not images.is_cuda:
        return reference_convolve(images, filters, size, padding, bias, activation)
    images, filters = images.contiguous(), filters.contiguous()
    clients, samples, height, width, inside = images.shape
    outside = filters.shape[2]
    rows, columns = height + 2 * padding - size + 1, width + 2 * padding - size + 1
    result = images.new_empty((clients, samples, rows, columns, outside))
    grid = (triton.cdiv(samples * rows * columns, PIXELS), clients)
    _convolve[grid](
        images, filters, filters if bias is None else bias, result,
        samples, height, width, rows, columns, 0 if bias is None else bias.stride(0),
        INSIDE=inside, OUTSIDE=outside, SIZE=size, PADDING=padding, BIASED=bias is not None,
        ACTIVATION=ACTIVATIONS[activation], PRECISION="ieee" if exact else "tf32",
        BLOCK_M=PIXELS, BLOCK_N=max(16, triton.next_power_of_2(outside)), BLOCK_K=32,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return result


def filter_gradient(images: Tensor, back: Tensor, size: int, padding: int, exact: bool) -> Tensor:
    """(c, b, h, w, in), (c, b, h', w', out) -> (c, size * size * in, out)."""
    if triton is None or not images.is_cuda:
        return reference_filter_gradient(images, back, size, padding)
    images, back = images.contiguous(), back.contiguous()
    clients, samples, height, width, inside = images.shape
    rows, columns, outside = back.shape[2:]
    depth = size * size * inside
    block_k = FILTER_DEPTH if depth > 32 else 32
    tiles = triton.cdiv(depth, block_k)
    # Enough programs to fill the chip; partial sums are added in a fixed order.
    splits = max(1, min(16, FILTER_PROGRAMS // max(1, clients * tiles)))
    partial = images.new_empty((splits, clients, depth, outside))
    _filter_gradient[(tiles, clients, splits)](
        images, back, partial, samples, height, width, rows, columns, clients,
        INSIDE=inside, OUTSIDE=outside, SIZE=size, PADDING=padding,
        PRECISION="ieee" if exact else "tf32", SPLITS=splits,
        BLOCK_K=block_k, BLOCK_N=max(16, triton.next_power_of_2(outside)), BLOCK_M=FILTER_PIXELS,
        num_warps=FILTER_WARPS, num_stages=3,
    )  # fmt: skip
    return partial[0] if splits == 1 else partial.sum(dim=0)


def pool(images: Tensor) -> Tensor:
    """The largest of each 2 x 2 square; an odd row or column at the end is left out."""
    return _squares(images).amax(dim=(3, 5))


def unpool(images: Tensor, pooled: Tensor, back: Tensor, activation: str) -> Tensor:
    """The gradient before activation and pooling; `images` are what was pooled.

    Of equal pixels in a square (blank background makes many) the first one gets the gradient.
    """
    if triton is None or not images.is_cuda:
        return reference_unpool(images, pooled, back, activation)
    result = torch.empty_like(images)
    height, width, channels = images.shape[2:]
    _unpool[(triton.cdiv(images.numel(), 1024),)](
        images, pooled.contiguous(), back.contiguous(), result, images.numel(), height, width,
        height // 2, width // 2, CHANNELS=channels, ACTIVATION=ACTIVATIONS[activation], BLOCK=1024,
    )  # fmt: skip
    return result


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


def reference_unpool(images: Tensor, pooled: Tensor, back: Tensor, activation: str) -> Tensor:
    """`unpool` by comparing every pixel with its square's largest."""
    result = torch.zeros_like(images)
    squares, into = _squares(images), _squares(result)
    free = torch.ones_like(pooled, dtype=torch.bool)
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        mine = free & (squares[:, :, :, row, :, column] == pooled)
        into[:, :, :, row, :, column] = mine * back
        free &= ~mine
    return activation_gradient(images, result, activation)


def _squares(images: Tensor) -> Tensor:
    """(c, b, h/2, 2, w/2, 2, channels), a view."""
    height, width = images.shape[2] // 2, images.shape[3] // 2
    whole = images[:, :, : 2 * height, : 2 * width]
    return whole.unflatten(3, (width, 2)).unflatten(2, (height, 2))


def turned(filters: Tensor, size: int, inside: int) -> Tensor:
    """Filters for the way back: turned by 180 degrees, input and output swapped."""
    clients, _, outside = filters.shape
    shaped = filters.view(clients, size, size, inside, outside).flip(1, 2).transpose(3, 4)
    return shaped.reshape(clients, size * size * outside, inside)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _convolve(  # type: ignore[no-untyped-def]
        images, filters, bias, result, samples, height, width, rows, columns, bias_stride,
        INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, SIZE: tl.constexpr, PADDING: tl.constexpr,
        BIASED: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ):  # fmt: skip
        depth: tl.constexpr = SIZE * SIZE * INSIDE
        client = tl.program_id(1).to(tl.int64)
        pixels = samples * rows * columns
        m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
        n = tl.arange(0, BLOCK_N)
        row, column = m // columns % rows, m % columns
        first = (m // (rows * columns)) * height
        images += client * samples * height * width * INSIDE
        filters += client * depth * OUTSIDE
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(0, depth, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            tap = k // INSIDE
            y = row[:, None] + (tap // SIZE)[None, :] - PADDING
            x = column[:, None] + (tap % SIZE)[None, :] - PADDING
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            inside &= (m < pixels)[:, None] & (k < depth)[None, :]
            place = ((first[:, None] + y) * width + x) * INSIDE + (k % INSIDE)[None, :]
            left = tl.load(images + place, mask=inside, other=0.0)
            right = tl.load(
                filters + k[:, None] * OUTSIDE + n[None, :],
                mask=(k < depth)[:, None] & (n < OUTSIDE)[None, :],
                other=0.0,
            )
            total = tl.dot(left, right, total, input_precision=PRECISION)
        if BIASED:
            total += tl.load(bias + client * bias_stride + n, mask=n < OUTSIDE, other=0.0)[None, :]
        if ACTIVATION == 1:
            total = tl.maximum(total, 0.0)
        if ACTIVATION == 2:
            total = libdevice.tanh(total)
        result += client * pixels * OUTSIDE
        tl.store(
            result + m[:, None] * OUTSIDE + n[None, :],
            total,
            mask=(m < pixels)[:, None] & (n < OUTSIDE)[None, :],
        )

    @triton.jit  # type: ignore[untyped-decorator]
    def _filter_gradient(  # type: ignore[no-untyped-def]
        images, back, partial, samples, height, width, rows, columns, clients,
        INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, SIZE: tl.constexpr, PADDING: tl.constexpr,
        PRECISION: tl.constexpr, SPLITS: tl.constexpr,
        BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    ):  # fmt: skip
        depth: tl.constexpr = SIZE * SIZE * INSIDE
        client = tl.program_id(1).to(tl.int64)
        split = tl.program_id(2)
        pixels = samples * rows * columns
        k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
        n = tl.arange(0, BLOCK_N)
        tap = k // INSIDE
        images += client * samples * height * width * INSIDE
        back += client * pixels * OUTSIDE
        share = tl.cdiv(tl.cdiv(pixels, BLOCK_M), SPLITS) * BLOCK_M
        total = tl.zeros((BLOCK_K, BLOCK_N), dtype=tl.float32)
        for start in range(split * share, tl.minimum((split + 1) * share, pixels), BLOCK_M):
            m = start + tl.arange(0, BLOCK_M)
            y = (m // columns % rows)[None, :] + (tap // SIZE)[:, None] - PADDING
            x = (m % columns)[None, :] + (tap % SIZE)[:, None] - PADDING
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            inside &= (m < pixels)[None, :] & (k < depth)[:, None]
            first = (m // (rows * columns)) * height
            place = ((first[None, :] + y) * width + x) * INSIDE + (k % INSIDE)[:, None]
            left = tl.load(images + place, mask=inside, other=0.0)
            right = tl.load(
                back + m[:, None] * OUTSIDE + n[None, :],
                mask=(m < pixels)[:, None] & (n < OUTSIDE)[None, :],
                other=0.0,
            )
            total = tl.dot(left, right, total, input_precision=PRECISION)
        partial += (split.to(tl.int64) * clients + client) * depth * OUTSIDE
        tl.store(
            partial + k[:, None] * OUTSIDE + n[None, :],
            total,
            mask=(k < depth)[:, None] & (n < OUTSIDE)[None, :],
        )

    @triton.jit  # type: ignore[untyped-decorator]
    def _unpool(  # type: ignore[no-untyped-def]
        images, pooled, back, result, count, height, width, rows, columns,
        CHANNELS: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        channel, pixel = place % CHANNELS, place // CHANNELS
        y, x = pixel // width % height, pixel % width
        row, column = y // 2, x // 2
        sample = pixel // (width * height)
        known = (place < count) & (row < rows) & (column < columns)
        square = ((sample * rows + row) * columns + column) * CHANNELS + channel
        value = tl.load(images + place, mask=place < count, other=0.0)
        largest = tl.load(pooled + square, mask=known, other=0.0)
        mine = known & (value == largest)
        # The first of equal pixels: no earlier one of the square may be the largest, too.
        corner = ((sample * height + 2 * row) * width + 2 * column) * CHANNELS + channel
        order = y % 2 * 2 + x % 2
        for earlier in tl.static_range(3):
            step = (earlier // 2 * width + earlier % 2) * CHANNELS
            other = tl.load(images + corner + step, mask=mine & (order > earlier), other=0.0)
            mine = mine & ((order <= earlier) | (other != largest))
        found = tl.where(mine, tl.load(back + square, mask=mine, other=0.0), 0.0)
        if ACTIVATION == 1:
            found = tl.where(value > 0, found, 0.0)
        if ACTIVATION == 2:
            found = found * (1 - value * value)
        tl.store(result + place, found, mask=place < count)
