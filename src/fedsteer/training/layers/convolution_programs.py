"""The Triton programs of `convolution_kernels`; each computes one tile of an output.

Libraries see the convolutions of many clients as one grouped convolution, which they compute
slowly. Here a client's convolution is a matrix product whose left side is gathered on the fly
(implicit GEMM). With few channels the inner axis of a product runs over taps and channels together,
with many (BY_TAP) over the channels of one tap after the other, which needs no arithmetic per
element. Importing this module needs Triton.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _inner_block(
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


@triton.jit
def _gather(
    images, sample, y, x, channel, here, known,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Pixels of images, zero beyond their edges."""
    inside = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH) & here
    place = ((sample * HEIGHT + y) * WIDTH + x) * CHANNELS + channel
    return tl.load(images + place, mask=inside & known, other=0.0)


@triton.jit(do_not_specialize=["samples", "bias_stride"])
def convolve(
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


@triton.jit(do_not_specialize=["samples"])
def input_gradient(
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


@triton.jit(do_not_specialize=["samples", "splits"])
def filter_gradient(
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


@triton.jit(do_not_specialize=["count"])
def spread(
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
