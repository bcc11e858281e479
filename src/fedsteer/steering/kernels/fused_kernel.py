"""The Triton kernels behind `fused`. Importing this module needs Triton."""

# ruff: noqa: RUF005 (Triton joins tuples by +, it cannot unpack them)
# mypy: disable-error-code="assignment, misc, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["groups", "base_scale", "count"],
    do_not_specialize_on_alignment=["partial"],
)
def sweep(
    updates, basis, base, delta, partial, groups, base_scale, count, weights, coefficients,
    COUNT: tl.constexpr, WIDTH: tl.constexpr, SUMS: tl.constexpr, GRAM: tl.constexpr,
    BASE: tl.constexpr, POSITIONS: tl.constexpr, STAGES: tl.constexpr,
    GROUP: tl.constexpr, WARP: tl.constexpr,
):  # fmt: skip
    """Delta, and of every program its share of each sum.

    `updates` and `basis` are tuples with the address of each row. The dimension comes in groups of
    POSITIONS: that is how Triton knows what divides it, and that a thread may read its group at
    once.
    """
    sums = ()
    for _ in tl.static_range(SUMS):
        sums = sums + (tl.zeros((WARP,), tl.float32),)
    dim = groups * POSITIONS
    # Where each row begins, and where it ends: an update that only fills up a group has no end.
    fresh_rows, fresh_ends = (), ()
    for i in tl.static_range(COUNT):
        fresh_rows = fresh_rows + (_begin(updates[i], delta, POSITIONS),)
        full = i <= COUNT - GROUP
        fresh_ends = fresh_ends + (dim if full else tl.where(i < count, groups, 0) * POSITIONS,)
    known_rows, known_ends = (), ()
    for j in tl.static_range(WIDTH):
        known_rows = known_rows + (_begin(basis[j], delta, POSITIONS),)
        known_ends = known_ends + (dim,)

    program, programs = tl.program_id(0), tl.num_programs(0)
    ACROSS: tl.constexpr = WARP * POSITIONS
    lane = tl.arange(0, ACROSS)
    for start in tl.range(program * ACROSS, dim, programs * ACROSS, num_stages=STAGES):
        at = start + lane
        # All loads first: what is under way at once is what hides the memory's latency.
        fresh = _read(fresh_rows, fresh_ends, at)
        known = _read(known_rows, known_ends, at)
        out = tl.zeros((ACROSS,), tl.float32)
        if BASE:
            out += base_scale * tl.load(base + at, mask=at < dim, other=0.0).to(tl.float32)
        for i in tl.static_range(COUNT):
            out += weights[i] * fresh[i]
        for j in tl.static_range(WIDTH):
            out += coefficients[j] * known[j]
        tl.store(delta + at, out, mask=at < dim)
        h, g, moved = _each(known, POSITIONS), _each(fresh, POSITIONS), _each((out,), POSITIONS)
        for p in tl.static_range(POSITIONS):
            sums = _add(sums, h[p], g[p], moved[p][0], WIDTH, COUNT, GRAM)
    for i in tl.static_range(SUMS):
        tl.store(partial + i * programs + program, tl.sum(sums[i], axis=0))


@triton.jit(
    do_not_specialize=["programs"], do_not_specialize_on_alignment=["partial", "sums", "near"]
)
def add_up(partial, sums, near, programs, BLOCK: tl.constexpr):
    """Each sum over all programs of `sweep`, for the host and for `keep`; a program takes one."""
    at = tl.arange(0, BLOCK)
    row = partial + tl.program_id(0) * programs
    values = tl.load(row + at, mask=at < programs, other=0.0).to(tl.float64)
    total = tl.sum(values, axis=0)
    tl.store(sums + tl.program_id(0), total)
    tl.store(near + tl.program_id(0), total)


@triton.jit
def _begin(row, aligned, POSITIONS: tl.constexpr):
    """The same address, in a way that tells Triton what divides it: as so many groups away from one
    that is aligned."""
    SIZE: tl.constexpr = row.dtype.element_ty.primitive_bitwidth // 8
    anchor = aligned.to(row.dtype, bitcast=True)
    return anchor + (row.to(tl.int64) - anchor.to(tl.int64)) // (SIZE * POSITIONS) * POSITIONS


@triton.jit
def _read(rows, ends, at):
    """These positions of every row, zero from its end on."""
    values = ()
    for i in tl.static_range(len(rows)):
        values = values + (tl.load(rows[i] + at, mask=at < ends[i], other=0.0).to(tl.float32),)
    return values


@triton.jit
def _each(rows, POSITIONS: tl.constexpr):
    """Of every thread's group one position after the other: for each, a tuple of rows."""
    each = (rows,)
    if POSITIONS > 1:
        each = _halves(rows)
    if POSITIONS > 2:
        each = _halves(each[0]) + _halves(each[1])
    return each


@triton.jit
def _halves(rows):
    even, odd = (), ()
    for i in tl.static_range(len(rows)):
        pairs = tl.split(tl.reshape(rows[i], (rows[i].shape[0] // 2, 2)))
        even, odd = even + (pairs[0],), odd + (pairs[1],)
    return (even, odd)


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
