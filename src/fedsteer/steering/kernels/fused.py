"""The whole pass of a server step as one Triton kernel: every number is read from memory once.

A program takes a piece of the d columns, reads updates and basis block by block, writes the
aggregate and keeps all inner products of the rows in registers. Products are tf32x3: three
tensor-core products that together are as exact as float32. Pieces are summed in float64, in a fixed
order. Importing this module needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def fused_pass(
    updates: Tensor,
    weights: Tensor,
    basis: Tensor | None,
    coefficients: Tensor,
    picked: Tensor | None,
    base: Tensor | None,
    base_scale: float,
    gram: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(d,) aggregate, (k, m) products, (m, m) Gram matrix or (m,) squared norms, |aggregate|^2.

    All but the first are float64 and may still be on their way.
    """
    count, dim = updates.shape
    width = 0 if basis is None else len(coefficients)
    m, k = (max(16, triton.next_power_of_2(rows)) for rows in (count, max(1, width)))
    piece = 2_048 if dim < 1 << 22 else 8_192
    block = min(256, 1 << ((8_192 // (m + (k if width else 0))).bit_length() - 1))
    pieces = triton.cdiv(dim, piece)
    own = m * m if gram else m
    inner = k * m if width else 0
    delta = torch.empty(dim, dtype=torch.float32, device=updates.device)
    partial = torch.empty((pieces, inner + own + 1), dtype=torch.float32, device=updates.device)
    _pass[(pieces,)](
        updates, updates if basis is None else basis, weights if picked is None else picked,
        weights, coefficients, updates if base is None else base, delta, partial,
        count, width, dim, updates.stride(0), 0 if basis is None else basis.stride(0), base_scale,
        M=m, K=k, BASIS=bool(width), PICKED=picked is not None, BASE=base is not None, GRAM=gram,
        INNER=inner, OWN=own, PIECE=piece, BLOCK=block, num_warps=4 if m + k <= 64 else 8,
    )  # fmt: skip
    sums = partial.sum(dim=0, dtype=torch.float64)
    products = sums[:inner].view(-1, m)[:width, :count]
    mine = sums[inner : inner + own]
    mine = mine.view(m, m)[:count, :count] if gram else mine[:count]
    return delta, products, mine, sums[-1]


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["count", "width", "dim", "base_scale"]
)
def _pass(  # type: ignore[no-untyped-def]
    updates, basis, picked, weights, coefficients, base, delta, partial,
    count, width, dim, update_stride, basis_stride, base_scale,
    M: tl.constexpr, K: tl.constexpr, BASIS: tl.constexpr, PICKED: tl.constexpr,
    BASE: tl.constexpr, GRAM: tl.constexpr, INNER: tl.constexpr, OWN: tl.constexpr,
    PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    m, k = tl.arange(0, M), tl.arange(0, K)
    weigh = tl.load(weights + m, mask=m < count, other=0.0)
    own_row = m.to(tl.int64) * update_stride
    own = tl.zeros((M, M) if GRAM else (M,), dtype=tl.float32)
    if BASIS:
        steer = tl.load(coefficients + k, mask=k < width, other=0.0)
        row = tl.load(picked + k, mask=k < width, other=0) if PICKED else k
        old_row = row.to(tl.int64) * basis_stride
        inner = tl.zeros((K, M), dtype=tl.float32)
    length = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, PIECE, BLOCK):
        place = piece * PIECE + start + tl.arange(0, BLOCK)
        known = place < dim
        fresh = tl.load(
            updates + own_row[:, None] + place[None, :],
            mask=(m < count)[:, None] & known[None, :],
            other=0.0,
        ).to(tl.float32)
        out = tl.sum(fresh * weigh[:, None], axis=0)
        if BASIS:
            old = tl.load(
                basis + old_row[:, None] + place[None, :],
                mask=(k < width)[:, None] & known[None, :],
                other=0.0,
            ).to(tl.float32)
            out += tl.sum(old * steer[:, None], axis=0)
            inner = tl.dot(old, tl.trans(fresh), inner, input_precision="tf32x3")
        if BASE:
            beside = tl.load(base + place, mask=known, other=0.0).to(tl.float32)
            out += base_scale * beside
        if GRAM:
            own = tl.dot(fresh, tl.trans(fresh), own, input_precision="tf32x3")
        else:
            own += tl.sum(fresh * fresh, axis=1)
        length += out * out
        tl.store(delta + place, out, mask=known)
    partial += piece.to(tl.int64) * (INNER + OWN + 1)
    if BASIS:
        tl.store(partial + k[:, None] * M + m[None, :], inner)
    if GRAM:
        tl.store(partial + INNER + m[:, None] * M + m[None, :], own)
    else:
        tl.store(partial + INNER + m, own)
    tl.store(partial + INNER + OWN, tl.sum(length))
