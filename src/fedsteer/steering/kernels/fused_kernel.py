"""The Triton kernel behind `fused`. Importing this module needs Triton."""

# ruff: noqa: RUF005 (Triton joins tuples by +, it cannot unpack them)
# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

# A thread reads single numbers, so nothing is gained from knowing what sizes and addresses divide.
SIZES = ["dim", "update_stride", "basis_stride", "base_scale", "count"]
ADDRESSES = ["updates", "basis", "base", "picked", "delta", "partial"]


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=ADDRESSES)
def sweep(
    updates, basis, base, picked, delta, partial,
    dim, update_stride, basis_stride, base_scale, count, weights, coefficients,
    COUNT: tl.constexpr, WIDTH: tl.constexpr, SUMS: tl.constexpr, GRAM: tl.constexpr,
    PICKED: tl.constexpr, BASE: tl.constexpr, POSITIONS: tl.constexpr, STAGES: tl.constexpr,
    GROUP: tl.constexpr, WARP: tl.constexpr,
):  # fmt: skip
    sums = ()
    for _ in tl.static_range(SUMS):
        sums = sums + (tl.zeros((WARP,), tl.float32),)
    # Where each row begins, and where it ends: an update that only fills up a group has no end.
    fresh_rows, fresh_ends = (), ()
    for i in tl.static_range(COUNT):
        fresh_rows = fresh_rows + (updates + i * update_stride.to(tl.int64),)
        fresh_ends = fresh_ends + (dim if i <= COUNT - GROUP else tl.where(i < count, dim, 0),)
    known_rows, known_ends = (), ()
    for j in tl.static_range(WIDTH):
        row = tl.load(picked + j) if PICKED else j
        known_rows = known_rows + (basis + row * basis_stride.to(tl.int64),)
        known_ends = known_ends + (dim,)

    program, programs = tl.program_id(0), tl.num_programs(0)
    across, lane = WARP * POSITIONS, tl.arange(0, WARP)
    for start in tl.range(program * across, dim, programs * across, num_stages=STAGES):
        # All loads first: what is under way at once is what hides the memory's latency.
        fresh, known = (), ()
        for p in tl.static_range(POSITIONS):
            fresh = fresh + _read(fresh_rows, fresh_ends, start + p * WARP + lane)
            known = known + _read(known_rows, known_ends, start + p * WARP + lane)
        for p in tl.static_range(POSITIONS):
            at = start + p * WARP + lane
            g = fresh[p * COUNT : (p + 1) * COUNT]
            h = known[p * WIDTH : (p + 1) * WIDTH]
            out = tl.zeros((WARP,), tl.float32)
            if BASE:
                out += base_scale * tl.load(base + at, mask=at < dim, other=0.0).to(tl.float32)
            for i in tl.static_range(COUNT):
                out += weights[i] * g[i]
            for j in tl.static_range(WIDTH):
                out += coefficients[j] * h[j]
            tl.store(delta + at, out, mask=at < dim)
            sums = _add(sums, h, g, out, WIDTH, COUNT, GRAM)
    for i in tl.static_range(SUMS):
        tl.store(partial + i * programs + program, tl.sum(sums[i], axis=0))


@triton.jit
def _read(rows, ends, at):
    """These positions of every row, zero from its end on."""
    values = ()
    for i in tl.static_range(len(rows)):
        values = values + (tl.load(rows[i] + at, mask=at < ends[i], other=0.0).to(tl.float32),)
    return values


@triton.jit
def _add(sums, h, g, out, WIDTH: tl.constexpr, COUNT: tl.constexpr, GRAM: tl.constexpr):
    """The sums with one more position: products, squared norms, Gram matrix, |Delta|^2."""
    more = ()
    for j in tl.static_range(WIDTH):
        for i in tl.static_range(COUNT):
            more = more + (sums[j * COUNT + i] + h[j] * g[i],)
    for i in tl.static_range(COUNT):
        more = more + (sums[WIDTH * COUNT + i] + g[i] * g[i],)
    if GRAM:
        for i in tl.static_range(COUNT):
            for l in tl.static_range(i):  # noqa: E741
                more = more + (sums[WIDTH * COUNT + COUNT + i * (i - 1) // 2 + l] + g[i] * g[l],)
    return more + (sums[len(sums) - 1] + out * out,)
