"""The Triton kernels of `convolution`: implicit matrix products, one launch for all clients.

Importing this module needs Triton. Sizes of layers are compile-time constants, so that places of
pixels cost shifts and not divisions; numbers of samples and clients are not, so that a network is
compiled once whatever batches come.

A pooled layer is never written out in full: `_convolve` takes its output pixels square by square
and keeps the largest of each 2 x 2 square, and which it was. Backward, `SPREAD` reads a gradient of
pooled size and puts it where `which` says, zero elsewhere, while it is being gathered.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

ACTIVATIONS = {"": 0, "relu": 1, "tanh": 2}
PIXELS, WIDE_WARPS = 128, 8
FILTER_PIXELS, FILTER_DEPTH, FILTER_WARPS, FILTER_PROGRAMS = 64, 32, 2, 2_048
"""Tile sizes of the two products, chosen by measuring on an H200 (benchmarks/client_step.py)."""


def convolve(
    images: Tensor,
    filters: Tensor,
    size: int,
    padding: int,
    exact: bool,
    bias: Tensor | None,
    activation: str,
    pools: bool,
    spread: tuple[Tensor, int, int] | None,
) -> tuple[Tensor, Tensor | None]:
    """Both forms of `convolution.convolve`; which pixel of a square was the largest if `pools`."""
    images, filters = images.contiguous(), filters.contiguous()
    clients, samples, height, width, inside = images.shape
    which = None
    if spread is not None:
        which, height, width = spread
    outside = filters.shape[2]
    rows, columns = height + 2 * padding - size + 1, width + 2 * padding - size + 1
    high, wide = (rows // 2, columns // 2) if pools else (rows, columns)
    result = images.new_empty((clients, samples, high, wide, outside))
    chosen = torch.empty_like(result, dtype=torch.int8) if pools else None
    block_n = max(16, triton.next_power_of_2(outside))
    count = samples * high * wide * (4 if pools else 1)
    _convolve[(triton.cdiv(count, PIXELS), clients)](
        images, filters if which is None else which, filters,
        filters if bias is None else bias, result, filters if chosen is None else chosen,
        samples, 0 if bias is None else bias.stride(0),
        HEIGHT=height, WIDTH=width, ROWS=rows, COLUMNS=columns,
        INSIDE=inside, OUTSIDE=outside, SIZE=size, PADDING=padding, BIASED=bias is not None,
        ACTIVATION=ACTIVATIONS[activation], POOLS=pools, SPREAD=which is not None,
        PRECISION="ieee" if exact else "tf32",
        BLOCK_M=PIXELS, BLOCK_N=block_n, BLOCK_K=32,
        num_warps=WIDE_WARPS if block_n >= 64 else 4, num_stages=3,
    )  # fmt: skip
    return result, chosen


def filter_gradient(
    images: Tensor,
    back: Tensor,
    size: int,
    padding: int,
    exact: bool,
    which: Tensor | None,
) -> Tensor:
    """See `convolution.filter_gradient`."""
    images, back = images.contiguous(), back.contiguous()
    clients, samples, height, width, inside = images.shape
    outside = back.shape[4]
    depth = size * size * inside
    tiles = triton.cdiv(depth, FILTER_DEPTH)
    # Enough programs to fill the chip; partial sums are added in a fixed order.
    splits = max(1, min(16, FILTER_PROGRAMS // max(1, clients * tiles)))
    partial = images.new_empty((splits, clients, depth, outside))
    _filter_gradient[(tiles, clients, splits)](
        images, back, back if which is None else which, partial, samples, clients, splits,
        HEIGHT=height, WIDTH=width,
        ROWS=height + 2 * padding - size + 1, COLUMNS=width + 2 * padding - size + 1,
        INSIDE=inside, OUTSIDE=outside, SIZE=size, PADDING=padding, SPREAD=which is not None,
        PRECISION="ieee" if exact else "tf32",
        BLOCK_K=FILTER_DEPTH, BLOCK_N=max(16, triton.next_power_of_2(outside)),
        BLOCK_M=FILTER_PIXELS, num_warps=FILTER_WARPS, num_stages=3,
    )  # fmt: skip
    return partial[0] if splits == 1 else partial.sum(dim=0)


@triton.jit  # type: ignore[untyped-decorator]
def _pixel(m, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SQUARES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sample, row and column of pixel number m; with SQUARES, four by four of each 2 x 2 square."""
    if SQUARES:
        square = m // 4
        row = square // (COLUMNS // 2) % (ROWS // 2) * 2 + m % 4 // 2
        column = square % (COLUMNS // 2) * 2 + m % 2
        sample = square // ((ROWS // 2) * (COLUMNS // 2))
    else:
        row = m // COLUMNS % ROWS
        column = m % COLUMNS
        sample = m // (ROWS * COLUMNS)
    return sample, row, column


@triton.jit(do_not_specialize=["samples", "bias_stride"])  # type: ignore[untyped-decorator]
def _convolve(  # type: ignore[no-untyped-def]
    images, which, filters, bias, result, chosen, samples, bias_stride,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, SIZE: tl.constexpr, PADDING: tl.constexpr,
    BIASED: tl.constexpr, ACTIVATION: tl.constexpr, POOLS: tl.constexpr, SPREAD: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    depth: tl.constexpr = SIZE * SIZE * INSIDE
    per_sample: tl.constexpr = (ROWS // 2) * (COLUMNS // 2) * 4 if POOLS else ROWS * COLUMNS
    stored: tl.constexpr = (HEIGHT // 2) * (WIDTH // 2) if SPREAD else HEIGHT * WIDTH
    # Rows and columns that gathering may see: pooling leaves an odd one at the end out.
    high: tl.constexpr = HEIGHT // 2 * 2 if SPREAD else HEIGHT
    wide: tl.constexpr = WIDTH // 2 * 2 if SPREAD else WIDTH
    client = tl.program_id(1).to(tl.int64)
    pixels = samples * per_sample
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    sample, row, column = _pixel(m, ROWS, COLUMNS, POOLS)
    images += client * samples * stored * INSIDE
    which += client * samples * stored * INSIDE
    filters += client * depth * OUTSIDE
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, depth, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        tap = k // INSIDE
        y = row[:, None] + (tap // SIZE)[None, :] - PADDING
        x = column[:, None] + (tap % SIZE)[None, :] - PADDING
        inside = (y >= 0) & (y < high) & (x >= 0) & (x < wide)
        inside &= (m < pixels)[:, None] & (k < depth)[None, :]
        channel = (k % INSIDE)[None, :]
        if SPREAD:
            square = (sample[:, None] * (HEIGHT // 2) + y // 2) * (WIDTH // 2) + x // 2
            place = square * INSIDE + channel
            left = tl.load(images + place, mask=inside, other=0.0)
            at = tl.load(which + place, mask=inside, other=0)
            left = tl.where(at == y % 2 * 2 + x % 2, left, 0.0)
        else:
            place = ((sample[:, None] * HEIGHT + y) * WIDTH + x) * INSIDE + channel
            left = tl.load(images + place, mask=inside, other=0.0)
        right = tl.load(
            filters + k[:, None] * OUTSIDE + n[None, :],
            mask=(k < depth)[:, None] & (n < OUTSIDE)[None, :],
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision=PRECISION)
    if BIASED:
        total += tl.load(bias + client * bias_stride + n, mask=n < OUTSIDE, other=0.0)[None, :]
    if POOLS:
        # Activations grow with their argument, so the largest before is the largest after.
        squares = tl.reshape(total, (BLOCK_M // 4, 4, BLOCK_N))
        total, first = tl.max(squares, axis=1, return_indices=True)
        place = tl.program_id(0) * (BLOCK_M // 4) + tl.arange(0, BLOCK_M // 4)
        count = pixels // 4
        chosen += client * count * OUTSIDE
        tl.store(
            chosen + place[:, None] * OUTSIDE + n[None, :],
            first.to(tl.int8),
            mask=(place < count)[:, None] & (n < OUTSIDE)[None, :],
        )
    else:
        place = m
        count = pixels
    if ACTIVATION == 1:
        total = tl.maximum(total, 0.0)
    if ACTIVATION == 2:
        total = libdevice.tanh(total)
    result += client * count * OUTSIDE
    tl.store(
        result + place[:, None] * OUTSIDE + n[None, :],
        total,
        mask=(place < count)[:, None] & (n < OUTSIDE)[None, :],
    )


@triton.jit(do_not_specialize=["samples", "clients", "splits"])  # type: ignore[untyped-decorator]
def _filter_gradient(  # type: ignore[no-untyped-def]
    images, back, which, partial, samples, clients, splits,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, SIZE: tl.constexpr, PADDING: tl.constexpr,
    SPREAD: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    depth: tl.constexpr = SIZE * SIZE * INSIDE
    per_sample: tl.constexpr = (ROWS // 2) * (COLUMNS // 2) * 4 if SPREAD else ROWS * COLUMNS
    stored: tl.constexpr = per_sample // 4 if SPREAD else per_sample
    client = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    pixels = samples * per_sample
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    n = tl.arange(0, BLOCK_N)
    tap = k // INSIDE
    images += client * samples * HEIGHT * WIDTH * INSIDE
    back += client * samples * stored * OUTSIDE
    which += client * samples * stored * OUTSIDE
    share = tl.cdiv(tl.cdiv(pixels, BLOCK_M), splits) * BLOCK_M
    total = tl.zeros((BLOCK_K, BLOCK_N), dtype=tl.float32)
    for start in range(split * share, tl.minimum((split + 1) * share, pixels), BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        sample, row, column = _pixel(m, ROWS, COLUMNS, SPREAD)
        y = row[None, :] + (tap // SIZE)[:, None] - PADDING
        x = column[None, :] + (tap % SIZE)[:, None] - PADDING
        inside = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        inside &= (m < pixels)[None, :] & (k < depth)[:, None]
        place = ((sample[None, :] * HEIGHT + y) * WIDTH + x) * INSIDE + (k % INSIDE)[:, None]
        left = tl.load(images + place, mask=inside, other=0.0)
        known = (m < pixels)[:, None] & (n < OUTSIDE)[None, :]
        if SPREAD:
            place = (m // 4)[:, None] * OUTSIDE + n[None, :]
            right = tl.load(back + place, mask=known, other=0.0)
            at = tl.load(which + place, mask=known, other=0)
            right = tl.where(at == (m % 4)[:, None], right, 0.0)
        else:
            right = tl.load(back + m[:, None] * OUTSIDE + n[None, :], mask=known, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    partial += (split.to(tl.int64) * clients + client) * depth * OUTSIDE
    tl.store(
        partial + k[:, None] * OUTSIDE + n[None, :],
        total,
        mask=(k < depth)[:, None] & (n < OUTSIDE)[None, :],
    )
