"""Stacked convolutions by Triton: one launch for all clients.

Libraries see this as one grouped convolution, which they compute slowly. Here a client's
convolution is a matrix product whose left side is gathered on the fly (implicit GEMM), one program
per tile of output pixels.

Importing this module needs Triton. Sizes of layers are compile-time constants, so that places of
pixels cost shifts and not divisions; numbers of samples and clients are not, so that a network is
compiled once for all batches. With few channels the inner axis of a product runs over taps
and channels together, with many (BY_TAP) over the channels of one tap after the other, which needs
no arithmetic per element. float32 images are multiplied as tf32 unless `exact`, bfloat16 ones as
such; sums are float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from fedsteer.training.layers.convolution import Window

ACTIVATIONS = {"": 0, "relu": 1, "tanh": 2}
MANY_CHANNELS = 64
PIXELS = 128
FILTER_PIXELS, FILTER_DEPTH, FILTER_WARPS, FILTER_PROGRAMS = 64, 32, 2, 2_048
SHORT_FILTER_PIXELS, SHORT_FILTER_WARPS = 64, 8


def tile(kind: torch.dtype, outside: int, inner: int) -> dict[str, int]:
    """How a program cuts a product with that many columns and inner channels.

    Chosen by measuring on an H200 (client_step.py).
    """
    channels = max(16, triton.next_power_of_2(outside))
    if kind == torch.float32:
        block_n, block_k, warps = min(channels, 128), 32, 4
    else:
        block_k = max(16, min(64, triton.next_power_of_2(inner)))
        block_n, warps = min(channels, 256), 4 if channels <= 64 else 8
    return {"BLOCK_M": PIXELS, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": warps}


def convolve(
    images: Tensor,
    filters: Tensor,
    window: Window,
    exact: bool,
    bias: Tensor | None,
    activation: str,
    pools: bool,
    beside: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """See `convolution.convolve`."""
    images = images.contiguous()
    clients, samples, height, width, inside = images.shape
    outside = filters.shape[-1]
    rows, columns = window.over(height), window.over(width)
    high, wide = (rows // 2, columns // 2) if pools else (rows, columns)
    result = images.new_empty((clients, samples, high, wide, outside))
    chosen = torch.empty_like(result, dtype=torch.int8) if pools else None
    cut = tile(images.dtype, outside, inside)
    count = samples * high * wide * (4 if pools else 1)
    grid = (triton.cdiv(count, PIXELS), clients, triton.cdiv(outside, cut["BLOCK_N"]))
    _convolve[grid](
        images, filters, bias, result, chosen, None if beside is None else beside.contiguous(),
        samples, filters.stride(0), 0 if bias is None else bias.stride(0),
        HEIGHT=height, WIDTH=width, ROWS=rows, COLUMNS=columns, INSIDE=inside, OUTSIDE=outside,
        SIZE=window.size, STRIDE=window.stride, PADDING=window.padding,
        ACTIVATION=ACTIVATIONS[activation], POOLS=pools, BY_TAP=inside >= MANY_CHANNELS,
        PRECISION="ieee" if exact else "tf32", **cut, num_stages=3,
    )  # fmt: skip
    return result, chosen


def input_gradient(
    back: Tensor,
    filters: Tensor,
    window: Window,
    sides: tuple[int, int],
    exact: bool,
    beside: Tensor | None,
) -> Tensor:
    """See `convolution.input_gradient`."""
    back = back.contiguous()
    clients, samples, rows, columns, outside = back.shape
    inside, stride = filters.shape[-2], window.stride
    result = back.new_empty((clients, samples, *sides, inside))
    cut = tile(back.dtype, inside, outside)
    # Under a stride, pixels of one parity see the same taps: they go together (phases).
    count = samples * triton.cdiv(sides[0], stride) * triton.cdiv(sides[1], stride)
    tiles = triton.cdiv(count, PIXELS)
    _input_gradient[(tiles, clients * stride * stride, triton.cdiv(inside, cut["BLOCK_N"]))](
        back, filters, result, None if beside is None else beside.contiguous(), samples,
        filters.stride(0),
        HEIGHT=sides[0], WIDTH=sides[1], ROWS=rows, COLUMNS=columns,
        INSIDE=inside, OUTSIDE=outside, SIZE=window.size, STRIDE=stride, PADDING=window.padding,
        BY_TAP=outside >= MANY_CHANNELS or stride > 1,
        PRECISION="ieee" if exact else "tf32", **cut, num_stages=3,
    )  # fmt: skip
    return result


def filter_gradient(
    images: Tensor, back: Tensor, window: Window, into: Tensor, exact: bool
) -> None:
    """See `convolution.filter_gradient`; `into` is float32, one piece per client."""
    images, back = images.contiguous(), back.contiguous()
    clients, samples, height, width, inside = images.shape
    rows, columns, outside = back.shape[2:]
    by_tap = inside >= MANY_CHANNELS
    block_n = max(16, min(128, triton.next_power_of_2(outside)))
    if images.dtype == torch.float32:
        pixels, depth, warps = FILTER_PIXELS, FILTER_DEPTH, FILTER_WARPS
    else:
        pixels, warps = SHORT_FILTER_PIXELS, SHORT_FILTER_WARPS
        depth = max(16, min(128, triton.next_power_of_2(inside)))
    taps = window.size**2
    tiles = taps * triton.cdiv(inside, depth) if by_tap else triton.cdiv(taps * inside, depth)
    across = triton.cdiv(outside, block_n)
    # Enough programs to fill the chip; partial sums are added in a fixed order.
    splits = max(1, min(16, FILTER_PROGRAMS // max(1, clients * tiles * across)))
    partial = into
    if splits > 1:
        partial = torch.empty((splits, *into.shape), dtype=torch.float32, device=images.device)
    _filter_gradient[(tiles * across, clients, splits)](
        images, back, partial, samples, splits, partial.stride(-5),
        0 if splits == 1 else partial.stride(0),
        HEIGHT=height, WIDTH=width, ROWS=rows, COLUMNS=columns, INSIDE=inside, OUTSIDE=outside,
        SIZE=window.size, STRIDE=window.stride, PADDING=window.padding,
        BY_TAP=by_tap, ACROSS=across, PRECISION="ieee" if exact else "tf32",
        BLOCK_K=depth, BLOCK_N=block_n, BLOCK_M=pixels, num_warps=warps, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        torch.sum(partial, dim=0, out=into)


def spread(back: Tensor, which: Tensor, sides: tuple[int, int]) -> Tensor:
    """See `convolution.spread`."""
    clients, samples, rows, columns, channels = back.shape
    result = back.new_empty((clients, samples, *sides, channels))
    _spread[(triton.cdiv(result.numel(), 1024),)](
        back.contiguous(), which, result, result.numel(),
        HEIGHT=sides[0], WIDTH=sides[1], ROWS=rows, COLUMNS=columns, CHANNELS=channels, BLOCK=1024,
    )  # fmt: skip
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _inner_block(  # type: ignore[no-untyped-def]
    step, SIZE: tl.constexpr, CHANNELS: tl.constexpr, BY_TAP: tl.constexpr, BLOCK: tl.constexpr
):
    """Taps (a single one if BY_TAP) and channels of a block of the inner axis; which there are."""
    if BY_TAP:
        chunks: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
        tap = step // chunks
        channel = step % chunks * BLOCK + tl.arange(0, BLOCK)
        known = channel < CHANNELS
    else:
        k = step * BLOCK + tl.arange(0, BLOCK)
        tap, channel, known = k // CHANNELS, k % CHANNELS, k < SIZE * SIZE * CHANNELS
    return tap, channel, known


@triton.jit  # type: ignore[untyped-decorator]
def _gather(  # type: ignore[no-untyped-def]
    images, sample, y, x, channel, here, known,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Pixels of images, zero beyond their edges."""
    inside = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH) & here
    place = ((sample * HEIGHT + y) * WIDTH + x) * CHANNELS + channel
    return tl.load(images + place, mask=inside & known, other=0.0)


@triton.jit(do_not_specialize=["samples", "bias_stride"])  # type: ignore[untyped-decorator]
def _convolve(  # type: ignore[no-untyped-def]
    images, filters, bias, result, chosen, beside, samples, filter_stride, bias_stride,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INSIDE: tl.constexpr, OUTSIDE: tl.constexpr,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    ACTIVATION: tl.constexpr, POOLS: tl.constexpr, BY_TAP: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    per_tap: tl.constexpr = (INSIDE + BLOCK_K - 1) // BLOCK_K
    together: tl.constexpr = (SIZE * SIZE * INSIDE + BLOCK_K - 1) // BLOCK_K
    client = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    per_sample: tl.constexpr = (ROWS // 2) * (COLUMNS // 2) * 4 if POOLS else ROWS * COLUMNS
    if POOLS:  # pixels four by four, the squares that are pooled
        row = m // 4 // (COLUMNS // 2) % (ROWS // 2) * 2 + m % 4 // 2
        column = m // 4 % (COLUMNS // 2) * 2 + m % 2
    else:
        row = m // COLUMNS % ROWS
        column = m % COLUMNS
    sample = m // per_sample
    pixels = samples * per_sample
    images += client * samples * HEIGHT * WIDTH * INSIDE
    filters += client * filter_stride
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, SIZE * SIZE * per_tap if BY_TAP else together):
        tap, channel, known = _inner_block(step, SIZE, INSIDE, BY_TAP, BLOCK_K)
        source = filters + ((tap * INSIDE + channel) * OUTSIDE)[:, None] + n[None, :]
        if not BY_TAP:
            tap = tap[None, :]
        y = row[:, None] * STRIDE + tap // SIZE - PADDING
        x = column[:, None] * STRIDE + tap % SIZE - PADDING
        left = _gather(
            images, sample[:, None], y, x, channel[None, :], (m < pixels)[:, None],
            known[None, :], HEIGHT, WIDTH, INSIDE,
        )  # fmt: skip
        right = tl.load(source, mask=known[:, None] & (n < OUTSIDE)[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    if bias is not None:
        total += tl.load(bias + client * bias_stride + n, mask=n < OUTSIDE, other=0.0)[None, :]
    if POOLS:
        # Activations grow with their argument, so the largest before is the largest after.
        squares = tl.reshape(total, (BLOCK_M // 4, 4, BLOCK_N))
        total, first = tl.max(squares, axis=1, return_indices=True)
        where = tl.program_id(0) * (BLOCK_M // 4) + tl.arange(0, BLOCK_M // 4)
        count = pixels // 4
    else:
        where = m
        count = pixels
    target = client * count * OUTSIDE + where[:, None] * OUTSIDE + n[None, :]
    mask = (where < count)[:, None] & (n < OUTSIDE)[None, :]
    if POOLS:
        tl.store(chosen + target, first.to(tl.int8), mask=mask)
    if ACTIVATION == 1:
        total = tl.maximum(total, 0.0)
    if ACTIVATION == 2:
        total = libdevice.tanh(total)
    if beside is not None:
        total += tl.load(beside + target, mask=mask, other=0.0).to(tl.float32)
    tl.store(result + target, total, mask=mask)


@triton.jit(do_not_specialize=["samples"])  # type: ignore[untyped-decorator]
def _input_gradient(  # type: ignore[no-untyped-def]
    back, filters, result, beside, samples, filter_stride,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INSIDE: tl.constexpr, OUTSIDE: tl.constexpr,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BY_TAP: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    per_tap: tl.constexpr = (OUTSIDE + BLOCK_K - 1) // BLOCK_K
    together: tl.constexpr = (SIZE * SIZE * OUTSIDE + BLOCK_K - 1) // BLOCK_K
    high: tl.constexpr = (HEIGHT + STRIDE - 1) // STRIDE
    wide: tl.constexpr = (WIDTH + STRIDE - 1) // STRIDE
    phase = tl.program_id(1) % (STRIDE * STRIDE)
    client = (tl.program_id(1) // (STRIDE * STRIDE)).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    y = m // wide % high * STRIDE + phase // STRIDE
    x = m % wide * STRIDE + phase % STRIDE
    sample = m // (high * wide)
    here = (sample < samples) & (y < HEIGHT) & (x < WIDTH)
    # The taps that reach a pixel of this phase: every STRIDE-th from the first one on.
    first_y = (phase // STRIDE + PADDING) % STRIDE
    first_x = (phase % STRIDE + PADDING) % STRIDE
    taps_y = (SIZE - first_y + STRIDE - 1) // STRIDE
    taps_x = (SIZE - first_x + STRIDE - 1) // STRIDE
    back += client * samples * ROWS * COLUMNS * OUTSIDE
    filters += client * filter_stride
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, taps_y * taps_x * per_tap if BY_TAP else together):
        tap, channel, known = _inner_block(step, SIZE, OUTSIDE, BY_TAP, BLOCK_K)
        down = first_y + tap // taps_x * STRIDE
        right_by = first_x + tap % taps_x * STRIDE
        source = (down * SIZE + right_by) * INSIDE * OUTSIDE + channel
        source = source[:, None] + n[None, :] * OUTSIDE
        if not BY_TAP:
            down, right_by = down[None, :], right_by[None, :]
        # Divisible: every tap of a phase is a whole number of strides away.
        row = (y[:, None] + PADDING - down) // STRIDE
        column = (x[:, None] + PADDING - right_by) // STRIDE
        left = _gather(
            back, sample[:, None], row, column, channel[None, :], here[:, None],
            known[None, :], ROWS, COLUMNS, OUTSIDE,
        )  # fmt: skip
        right = tl.load(filters + source, mask=known[:, None] & (n < INSIDE)[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    pixel = (sample * HEIGHT + y) * WIDTH + x
    target = client * samples * HEIGHT * WIDTH * INSIDE + pixel[:, None] * INSIDE + n[None, :]
    mask = here[:, None] & (n < INSIDE)[None, :]
    if beside is not None:
        total += tl.load(beside + target, mask=mask, other=0.0).to(tl.float32)
    tl.store(result + target, total, mask=mask)


@triton.jit(do_not_specialize=["samples", "splits"])  # type: ignore[untyped-decorator]
def _filter_gradient(  # type: ignore[no-untyped-def]
    images, back, partial, samples, splits, client_stride, split_stride,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INSIDE: tl.constexpr, OUTSIDE: tl.constexpr,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BY_TAP: tl.constexpr, ACROSS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    pixels = samples * ROWS * COLUMNS
    n = tl.program_id(0) % ACROSS * BLOCK_N + tl.arange(0, BLOCK_N)
    tap, channel, known = _inner_block(tl.program_id(0) // ACROSS, SIZE, INSIDE, BY_TAP, BLOCK_K)
    k = tap * INSIDE + channel
    if not BY_TAP:
        tap = tap[:, None]
    images += client * samples * HEIGHT * WIDTH * INSIDE
    back += client * pixels * OUTSIDE
    share = tl.cdiv(tl.cdiv(pixels, BLOCK_M), splits) * BLOCK_M
    total = tl.zeros((BLOCK_K, BLOCK_N), dtype=tl.float32)
    for start in range(split * share, tl.minimum((split + 1) * share, pixels), BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        y = (m // COLUMNS % ROWS * STRIDE - PADDING)[None, :] + tap // SIZE
        x = (m % COLUMNS * STRIDE - PADDING)[None, :] + tap % SIZE
        sample = m // (ROWS * COLUMNS)
        left = _gather(
            images, sample[None, :], y, x, channel[:, None], (m < pixels)[None, :],
            known[:, None], HEIGHT, WIDTH, INSIDE,
        )  # fmt: skip
        mask = (m < pixels)[:, None] & (n < OUTSIDE)[None, :]
        right = tl.load(back + m[:, None] * OUTSIDE + n[None, :], mask=mask, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    partial += split.to(tl.int64) * split_stride + client * client_stride
    target = k[:, None] * OUTSIDE + n[None, :]
    tl.store(partial + target, total, mask=known[:, None] & (n < OUTSIDE)[None, :])


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _spread(  # type: ignore[no-untyped-def]
    back, which, result, count,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel, pixel = place % CHANNELS, place // CHANNELS
    y, x = pixel // WIDTH % HEIGHT, pixel % WIDTH
    row, column, sample = y // 2, x // 2, pixel // (WIDTH * HEIGHT)
    known = (place < count) & (row < ROWS) & (column < COLUMNS)
    square = ((sample * ROWS + row) * COLUMNS + column) * CHANNELS + channel
    value = tl.load(back + square, mask=known, other=0.0)
    at = tl.load(which + square, mask=known, other=0)
    tl.store(result + place, tl.where(at == y % 2 * 2 + x % 2, value, 0.0), mask=place < count)
