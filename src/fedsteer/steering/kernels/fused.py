"""The whole pass of a server step as one Triton kernel: every number is read from memory once.

A program takes a piece of the d columns, block by block: it reads the updates and the basis there,
writes the aggregate, and adds up all products of rows column by column in registers, in float32.
Sums over pieces are float64, in a fixed order. Importing this module needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

HELD = 32_768
"""Running sums of a program: 128 registers for each of its 256 threads."""


def fused_pass(
    updates: Tensor,
    weights: Tensor,
    basis: Tensor | None,
    coefficients: Tensor,
    picked: Tensor | None,
    base: Tensor | None,
    base_scale: float,
    chosen: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The aggregate (d,) and a float64 vector: products (k, m), norms (m,), Gram (c, c), length.

    `chosen` are the rows of the Gram matrix. The vector may still be on its way.
    """
    count, dim = updates.shape
    width, some = 0 if basis is None else len(coefficients), 0 if chosen is None else len(chosen)
    m, k, c = (triton.next_power_of_2(max(1, rows)) for rows in (count, width, some))
    pairs = (k * m if width else 0) + (c * c if some else 0)
    block = min(256, 1 << ((HELD // max(1, pairs)).bit_length() - 1))
    piece = block * (32 if dim > 1 << 22 else 4)
    pieces = triton.cdiv(dim, piece)
    sizes = [k * m if width else 0, m, c * c if some else 0, 1]
    delta = torch.empty(dim, dtype=torch.float32, device=updates.device)
    partial = torch.empty((pieces, sum(sizes)), dtype=torch.float32, device=updates.device)
    _pass[(pieces,)](
        updates, updates if basis is None else basis, weights if picked is None else picked,
        weights if chosen is None else chosen,
        weights, coefficients, updates if base is None else base, delta, partial,
        count, width, some, dim, updates.stride(0), 0 if basis is None else basis.stride(0),
        base_scale, M=m, K=k, C=c, BASIS=bool(width), PICKED=picked is not None,
        BASE=base is not None, GRAM=bool(some), INNER=sizes[0], OWN=sizes[2], PIECE=piece,
        BLOCK=block, num_warps=8,
    )  # fmt: skip
    products, norms, gram, length = partial.sum(dim=0, dtype=torch.float64).split(sizes)
    parts = [products.view(-1, m)[:width, :count], norms[:count]]
    parts += [gram.view(-1, c)[:some, :some], length]
    return delta, torch.cat([part.reshape(-1) for part in parts])


def fits(count: int, width: int, some: int) -> bool:
    """Whether a program can hold the sums of so many rows."""
    m, k, c = (triton.next_power_of_2(max(1, rows)) for rows in (count, width, some))
    return 0 < count <= 128 and (k * m if width else 0) + (c * c if some else 0) <= HELD // 32


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["count", "width", "some", "dim", "base_scale"]
)
def _pass(  # type: ignore[no-untyped-def]
    updates, basis, picked, chosen, weights, coefficients, base, delta, partial,
    count, width, some, dim, update_stride, basis_stride, base_scale,
    M: tl.constexpr, K: tl.constexpr, C: tl.constexpr, BASIS: tl.constexpr, PICKED: tl.constexpr,
    BASE: tl.constexpr, GRAM: tl.constexpr, INNER: tl.constexpr, OWN: tl.constexpr,
    PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    m, k, c = tl.arange(0, M), tl.arange(0, K), tl.arange(0, C)
    weigh = tl.load(weights + m, mask=m < count, other=0.0)
    norms = tl.zeros((M, BLOCK), dtype=tl.float32)
    length = tl.zeros((BLOCK,), dtype=tl.float32)
    if BASIS:
        steer = tl.load(coefficients + k, mask=k < width, other=0.0)
        row = tl.load(picked + k, mask=k < width, other=0) if PICKED else k
        inner = tl.zeros((K, M, BLOCK), dtype=tl.float32)
    if GRAM:
        of = tl.load(chosen + c, mask=c < some, other=0)
        own = tl.zeros((C, C, BLOCK), dtype=tl.float32)
    for start in range(0, PIECE, BLOCK):
        place = program * PIECE + start + tl.arange(0, BLOCK)
        known = (place < dim)[None, :]
        fresh = tl.load(
            updates + m.to(tl.int64)[:, None] * update_stride + place[None, :],
            mask=(m < count)[:, None] & known,
            other=0.0,
        ).to(tl.float32)
        norms += fresh * fresh
        out = tl.sum(fresh * weigh[:, None], axis=0)
        if BASIS:
            old = tl.load(
                basis + row.to(tl.int64)[:, None] * basis_stride + place[None, :],
                mask=(k < width)[:, None] & known,
                other=0.0,
            ).to(tl.float32)
            out += tl.sum(old * steer[:, None], axis=0)
            inner += old[:, None, :] * fresh[None, :, :]
        if GRAM:
            mine = tl.load(
                updates + of.to(tl.int64)[:, None] * update_stride + place[None, :],
                mask=(c < some)[:, None] & known,
                other=0.0,
            ).to(tl.float32)
            own += mine[:, None, :] * mine[None, :, :]
        if BASE:
            out += base_scale * tl.load(base + place, mask=place < dim, other=0.0).to(tl.float32)
        length += out * out
        tl.store(delta + place, out, mask=place < dim)
    partial += program * (INNER + M + OWN + 1)
    tl.store(partial + INNER + m, tl.sum(norms, axis=1))
    tl.store(partial + INNER + M + OWN, tl.sum(length))
    if BASIS:
        tl.store(partial + k[:, None] * M + m[None, :], tl.sum(inner, axis=2))
    if GRAM:
        tl.store(partial + INNER + M + c[:, None] * C + c[None, :], tl.sum(own, axis=2))
