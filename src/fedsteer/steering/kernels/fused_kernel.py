"""The Triton kernel of `fused`. Importing this module needs Triton."""

# ruff: noqa: RUF005 (Triton joins tuples with +, it cannot unpack them)
# mypy: disable-error-code="assignment, misc, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["count", "width", "update_groups", "basis_groups", "groups", "base_scale"]
)
def sweep(
    updates,  # (count, dim) with rows `update_groups` groups apart
    weights,  # tuple of COUNT floats
    count,
    update_groups,
    basis,  # as `updates`
    coefficients,  # tuple of WIDTH + 1 floats: a tuple must not be empty
    width,
    basis_groups,
    rows,  # (WIDTH,) int64, the rows of `basis` to use, or None for all
    base,  # (dim,) or None
    base_scale,
    delta,  # (dim,) output
    partial,  # (SUMS, programs) output
    groups,  # dim // POSITIONS
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    SUMS: tl.constexpr,
    GRAM: tl.constexpr,
    POSITIONS: tl.constexpr,
    PADDING: tl.constexpr,
    STAGES: tl.constexpr,
    LANES: tl.constexpr,
):
    """Delta, and the share of this program in every sum.

    Sizes and strides are given in groups of POSITIONS numbers. That tells Triton what they are
    multiples of, and so that a thread may load POSITIONS neighbours with one instruction.
    """
    sums = ()
    for _ in tl.static_range(SUMS):
        sums = sums + (tl.zeros((LANES,), tl.float32),)
    dim = groups * POSITIONS
    fresh_rows = _rows(updates, None, update_groups, COUNT, POSITIONS)
    fresh_ends = _ends(count, groups, COUNT, POSITIONS, PADDING)
    known_rows = _rows(basis, rows, basis_groups, WIDTH, POSITIONS)
    if rows is None:
        known_ends = _ends(width, groups, WIDTH, POSITIONS, 0)
    else:
        known_ends = _ends(width, groups, WIDTH, POSITIONS, PADDING)

    program, programs = tl.program_id(0), tl.num_programs(0)
    STEP: tl.constexpr = LANES * POSITIONS
    lane = tl.arange(0, STEP)
    for start in tl.range(program * STEP, dim, programs * STEP, num_stages=STAGES):
        at = start + lane
        # All loads come first: many loads in flight hide the latency of the memory.
        fresh = _load(fresh_rows, fresh_ends, at)
        known = _load(known_rows, known_ends, at)
        out = tl.zeros((STEP,), tl.float32)
        if base is not None:
            out += base_scale * tl.load(base + at, mask=at < dim, other=0.0).to(tl.float32)
        for i in tl.static_range(COUNT):
            out += weights[i] * fresh[i]
        for j in tl.static_range(WIDTH):
            out += coefficients[j] * known[j]
        tl.store(delta + at, out, mask=at < dim)
        h, g, moved = _split(known, POSITIONS), _split(fresh, POSITIONS), _split((out,), POSITIONS)
        for p in tl.static_range(POSITIONS):
            sums = _add(sums, h[p], g[p], moved[p][0], WIDTH, COUNT, GRAM)
    for i in tl.static_range(SUMS):
        tl.store(partial + i * programs + program, tl.sum(sums[i], axis=0))


@triton.jit
def _rows(matrix, picked, row_groups, COUNT: tl.constexpr, POSITIONS: tl.constexpr):
    """Pointers to the first number of each row, in 64 bits: matrices may be large."""
    pointers = ()
    for i in tl.static_range(COUNT):
        if picked is None:
            pointers = pointers + (matrix + i * row_groups.to(tl.int64) * POSITIONS,)
        else:
            row = tl.load(picked + i)
            pointers = pointers + (matrix + row * row_groups.to(tl.int64) * POSITIONS,)
    return pointers


@triton.jit
def _ends(
    count, groups, COUNT: tl.constexpr, POSITIONS: tl.constexpr, PADDING: tl.constexpr
):  # fmt: skip
    """The length of each row: `dim`, or 0 for one of the up to PADDING - 1 padded rows."""
    ends = ()
    for i in tl.static_range(COUNT):
        if i <= COUNT - PADDING:
            ends = ends + (groups * POSITIONS,)
        else:
            ends = ends + (tl.where(i < count, groups, 0) * POSITIONS,)
    return ends


@triton.jit
def _load(rows, ends, at):
    """These positions of every row as float32, zero from its end on."""
    values = ()
    for i in tl.static_range(len(rows)):
        values = values + (tl.load(rows[i] + at, mask=at < ends[i], other=0.0).to(tl.float32),)
    return values


@triton.jit
def _split(rows, POSITIONS: tl.constexpr):
    """For each of the POSITIONS numbers in a thread's group, a tuple with that number per row."""
    parts = (rows,)
    if POSITIONS > 1:
        parts = _halves(rows)
    if POSITIONS > 2:
        parts = _halves(parts[0]) + _halves(parts[1])
    return parts


@triton.jit
def _halves(rows):
    even, odd = (), ()
    for i in tl.static_range(len(rows)):
        pair = tl.split(tl.reshape(rows[i], (rows[i].shape[0] // 2, 2)))
        even, odd = even + (pair[0],), odd + (pair[1],)
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
