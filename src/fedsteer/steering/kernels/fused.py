"""The whole pass of a server step as one Triton kernel: every number is read from memory once.

A program takes a block of the d columns, holds the updates and the basis there in registers, writes
the aggregate, and takes the inner products of one update after the other with all rows, float32
throughout. Sums over blocks are float64, in a fixed order. Importing this module needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

HELD = 16_384
"""Numbers that a program holds in its registers."""


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
    m, k = (max(8, triton.next_power_of_2(rows)) for rows in (count, max(1, width)))
    block = max(64, HELD // (m + (k if width else 0)))
    blocks = triton.cdiv(dim, block)
    own = m * m if gram else m
    inner = k * m if width else 0
    delta = torch.empty(dim, dtype=torch.float32, device=updates.device)
    partial = torch.zeros((blocks, inner + own + 1), dtype=torch.float32, device=updates.device)
    _pass[(blocks,)](
        updates, updates if basis is None else basis, weights if picked is None else picked,
        weights, coefficients, updates if base is None else base, delta, partial,
        count, width, dim, updates.stride(0), 0 if basis is None else basis.stride(0), base_scale,
        M=m, K=k, BASIS=bool(width), PICKED=picked is not None, BASE=base is not None, GRAM=gram,
        INNER=inner, OWN=own, BLOCK=block, num_warps=8,
    )  # fmt: skip
    sums = partial.sum(dim=0, dtype=torch.float64)
    products = sums[:inner].view(m, -1)[:count, :width].T
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
    BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    known = place < dim
    partial += tl.program_id(0).to(tl.int64) * (INNER + OWN + 1)
    m, k = tl.arange(0, M), tl.arange(0, K)
    weigh = tl.load(weights + m, mask=m < count, other=0.0)
    fresh = tl.load(
        updates + m.to(tl.int64)[:, None] * update_stride + place[None, :],
        mask=(m < count)[:, None] & known[None, :],
        other=0.0,
    ).to(tl.float32)
    out = tl.sum(fresh * weigh[:, None], axis=0)
    if BASIS:
        steer = tl.load(coefficients + k, mask=k < width, other=0.0)
        row = tl.load(picked + k, mask=k < width, other=0) if PICKED else k
        old = tl.load(
            basis + row.to(tl.int64)[:, None] * basis_stride + place[None, :],
            mask=(k < width)[:, None] & known[None, :],
            other=0.0,
        ).to(tl.float32)
        out += tl.sum(old * steer[:, None], axis=0)
    if BASE:
        out += base_scale * tl.load(base + place, mask=known, other=0.0).to(tl.float32)
    tl.store(delta + place, out, mask=known)
    tl.store(partial + INNER + OWN, tl.sum(out * out))
    if not GRAM:
        tl.store(partial + INNER + m, tl.sum(fresh * fresh, axis=1))
    if BASIS or GRAM:
        # One update at a time against the rows held: it comes from the cache, just filled.
        for j in range(count):
            one = tl.load(updates + place, mask=known, other=0.0)
            one = one.to(tl.float32)[None, :]
            if BASIS:
                tl.store(partial + j * K + k, tl.sum(old * one, axis=1))
            if GRAM:
                tl.store(partial + INNER + j * M + m, tl.sum(fresh * one, axis=1))
            updates += update_stride
