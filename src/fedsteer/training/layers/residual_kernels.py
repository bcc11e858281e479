"""Stacked batch normalisation by Triton.

Sums over a client's pixels are taken in `parts` programs per client and channel block. The programs
that need them add the parts up, always in the same order, which is cheaper than another launch.
Importing this module needs Triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsteer.training.layers.residual import Normal

ROWS, TURNS = 32, 8  # pixels at a time, and how often a program of the elementwise kernels repeats


def normalise(images: Tensor, how: Normal) -> tuple[Tensor, Tensor]:
    """See `residual.normalise`; the moments stay in parts."""
    images = images.contiguous()
    clients, channels = len(images), images.shape[-1]
    count = images[0, ..., 0].numel()
    parts = int(min(32, max(1, triton.next_power_of_2(count // 2048))))
    block = min(64, max(16, triton.next_power_of_2(channels)))
    across = triton.cdiv(channels, block)
    shape = (clients, parts, 2, channels)
    sums = torch.empty(shape, dtype=torch.float32, device=images.device)
    _moments[(parts, clients, across)](
        images, sums, count, CHANNELS=channels, PARTS=parts, ROWS=ROWS, BLOCK=block,
    )  # fmt: skip
    result = torch.empty_like(images)
    _normalise[(triton.cdiv(count, ROWS * TURNS), clients, across)](
        images, sums, how.gamma, how.beta, result, count, how.gamma.stride(0), how.eps,
        CHANNELS=channels, PARTS=parts, RELU=how.relu, ROWS=ROWS, TURNS=TURNS, BLOCK=block,
    )  # fmt: skip
    return result, sums


def normalise_back(
    images: Tensor, sums: Tensor, how: Normal, back: Tensor, beside: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """See `residual.normalise_back`."""
    images, back = images.contiguous(), back.contiguous()
    clients, channels = len(images), images.shape[-1]
    count = images[0, ..., 0].numel()
    parts, block = sums.shape[1], min(64, max(16, triton.next_power_of_2(channels)))
    across = triton.cdiv(channels, block)
    inner = torch.empty_like(sums)
    shared = {"CHANNELS": channels, "PARTS": parts, "RELU": how.relu, "ROWS": ROWS, "BLOCK": block}
    _inner[(parts, clients, across)](
        images, sums, how.gamma, how.beta, back, inner, count, how.gamma.stride(0), how.eps,
        **shared,
    )  # fmt: skip
    result = torch.empty_like(images)
    _normalise_back[(triton.cdiv(count, ROWS * TURNS), clients, across)](
        images, sums, how.gamma, how.beta, back, inner,
        None if beside is None else beside.contiguous(), result, count,
        how.gamma.stride(0), how.eps, TURNS=TURNS, **shared,
    )  # fmt: skip
    whole = inner.sum(dim=1)
    return result, whole[:, 1], whole[:, 0]


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _moments(  # type: ignore[no-untyped-def]
    images, sums, count,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part, client = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    known = channel < CHANNELS
    images += client * count * CHANNELS
    # Sums around the first pixel lose no digits if the mean is far from zero.
    pivot = tl.load(images + channel, mask=known, other=0.0).to(tl.float32)
    share = tl.cdiv(count, PARTS)
    one = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    two = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    last = tl.minimum((part + 1) * share, count)
    for start in range(part * share, last, ROWS):
        pixel = start + tl.arange(0, ROWS)
        mask = (pixel < last)[:, None] & known[None, :]
        value = tl.load(images + pixel[:, None] * CHANNELS + channel[None, :], mask=mask, other=0.0)
        away = tl.where(mask, value.to(tl.float32) - pivot[None, :], 0.0)
        one += away
        two += away * away
    sums += (client * PARTS + part) * 2 * CHANNELS
    tl.store(sums + channel, tl.sum(one, axis=0), mask=known)
    tl.store(sums + CHANNELS + channel, tl.sum(two, axis=0), mask=known)


@triton.jit  # type: ignore[untyped-decorator]
def _whole(  # type: ignore[no-untyped-def]
    sums, client, channel, known, PARTS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Both sums of a client over all parts."""
    part = tl.arange(0, PARTS)
    place = (client * PARTS + part)[:, None] * 2 * CHANNELS + channel[None, :]
    one = tl.sum(tl.load(sums + place, mask=known[None, :], other=0.0), axis=0)
    two = tl.sum(tl.load(sums + place + CHANNELS, mask=known[None, :], other=0.0), axis=0)
    return one, two


@triton.jit  # type: ignore[untyped-decorator]
def _mean_and_scale(  # type: ignore[no-untyped-def]
    images, sums, client, channel, known, count, eps, PARTS: tl.constexpr, CHANNELS: tl.constexpr
):
    pivot = tl.load(images + client * count * CHANNELS + channel, mask=known, other=0.0)
    one, two = _whole(sums, client, channel, known, PARTS, CHANNELS)
    away = one / count
    variance = tl.maximum(two / count - away * away, 0.0)
    return pivot.to(tl.float32) + away, 1.0 / tl.sqrt(variance + eps)


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _normalise(  # type: ignore[no-untyped-def]
    images, sums, gamma, beta, result, count, stride, eps,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, TURNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    known = channel < CHANNELS
    mean, scale = _mean_and_scale(images, sums, client, channel, known, count, eps, PARTS, CHANNELS)
    factor = tl.load(gamma + client * stride + channel, mask=known, other=0.0).to(tl.float32)
    offset = tl.load(beta + client * stride + channel, mask=known, other=0.0).to(tl.float32)
    for turn in range(TURNS):
        pixel = (tl.program_id(0) * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        mask = (pixel < count)[:, None] & known[None, :]
        place = client * count * CHANNELS + pixel[:, None] * CHANNELS + channel[None, :]
        value = tl.load(images + place, mask=mask, other=0.0).to(tl.float32)
        value = (value - mean[None, :]) * scale[None, :] * factor[None, :] + offset[None, :]
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(result + place, value, mask=mask)


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _inner(  # type: ignore[no-untyped-def]
    images, sums, gamma, beta, back, inner, count, stride, eps,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part, client = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    known = channel < CHANNELS
    mean, scale = _mean_and_scale(images, sums, client, channel, known, count, eps, PARTS, CHANNELS)
    factor = tl.load(gamma + client * stride + channel, mask=known, other=0.0).to(tl.float32)
    offset = tl.load(beta + client * stride + channel, mask=known, other=0.0).to(tl.float32)
    share = tl.cdiv(count, PARTS)
    one = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    two = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    last = tl.minimum((part + 1) * share, count)
    for start in range(part * share, last, ROWS):
        pixel = start + tl.arange(0, ROWS)
        mask = (pixel < last)[:, None] & known[None, :]
        place = client * count * CHANNELS + pixel[:, None] * CHANNELS + channel[None, :]
        value = tl.load(images + place, mask=mask, other=0.0).to(tl.float32)
        gradient = tl.load(back + place, mask=mask, other=0.0).to(tl.float32)
        hat = (value - mean[None, :]) * scale[None, :]
        if RELU:
            gradient = tl.where(hat * factor[None, :] + offset[None, :] > 0, gradient, 0.0)
        one += gradient
        two += gradient * hat
    inner += (client * PARTS + part) * 2 * CHANNELS
    tl.store(inner + channel, tl.sum(one, axis=0), mask=known)
    tl.store(inner + CHANNELS + channel, tl.sum(two, axis=0), mask=known)


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _normalise_back(  # type: ignore[no-untyped-def]
    images, sums, gamma, beta, back, inner, beside, result, count, stride, eps,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, TURNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    known = channel < CHANNELS
    mean, scale = _mean_and_scale(images, sums, client, channel, known, count, eps, PARTS, CHANNELS)
    one, two = _whole(inner, client, channel, known, PARTS, CHANNELS)
    factor = tl.load(gamma + client * stride + channel, mask=known, other=0.0).to(tl.float32)
    offset = tl.load(beta + client * stride + channel, mask=known, other=0.0).to(tl.float32)
    for turn in range(TURNS):
        pixel = (tl.program_id(0) * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        mask = (pixel < count)[:, None] & known[None, :]
        place = client * count * CHANNELS + pixel[:, None] * CHANNELS + channel[None, :]
        value = tl.load(images + place, mask=mask, other=0.0).to(tl.float32)
        gradient = tl.load(back + place, mask=mask, other=0.0).to(tl.float32)
        hat = (value - mean[None, :]) * scale[None, :]
        if RELU:
            gradient = tl.where(hat * factor[None, :] + offset[None, :] > 0, gradient, 0.0)
        found = gradient - one[None, :] / count - hat * (two[None, :] / count)
        found = found * (factor * scale)[None, :]
        if beside is not None:
            found += tl.load(beside + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(result + place, found, mask=mask)
