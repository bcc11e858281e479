"""Stacked convolutions by Triton: one launch of `convolution_programs` for all clients.

Importing this module needs Triton. Sizes of layers are compile-time constants, so that places of
pixels cost shifts and not divisions; numbers of samples and clients are not, so that a network is
compiled once for all batches. float32 images are multiplied as tf32 unless `exact`, bfloat16 ones
as such; sums are float32.
"""

import torch
import triton
from torch import Tensor

from fedsteer.training.layers import convolution_programs as programs
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
    programs.convolve[grid](
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
    across = triton.cdiv(inside, cut["BLOCK_N"])
    programs.input_gradient[(triton.cdiv(count, PIXELS), clients * stride * stride, across)](
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
    programs.filter_gradient[(tiles * across, clients, splits)](
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
    programs.spread[(triton.cdiv(result.numel(), 1024),)](
        back.contiguous(), which, result, result.numel(),
        HEIGHT=sides[0], WIDTH=sides[1], ROWS=rows, COLUMNS=columns, CHANNELS=channels, BLOCK=1024,
    )  # fmt: skip
    return result
