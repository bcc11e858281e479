"""`one_pass` as a Triton kernel that reads every number once. Importing this needs Triton.

A program is one warp that walks over the positions. A thread holds the k + m values of a few
positions and, over all positions it meets, a running sum for each number that is asked for:

    h_j . g_i        g_i . g_l (l <= i)        |Delta|^2,  Delta = b + sum_j c_j h_j + sum_i a_i g_i

Each sum is a register of its own, held in a tuple of vectors: k = m = 10 takes 111 of them, or 156
with the Gram matrix, and nothing is spilled. (One matrix of sums would be padded to powers of two
and spill; reducing each product where it arises takes longer than reading.) The weights are kernel
arguments, operands that cost no register. Reading ahead goes through shared memory (STAGES). A
second, short kernel adds the sums of all programs in float64 and writes them to the host's memory.
A third copies what is to be kept, while the host is busy with the sums.

At d = 11 million all that takes a quarter of a millisecond, so what the host does before the launch
and after the sums counts: plans are looked up, and addresses, not tensors, are handed to Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from triton.runtime import driver

from fedsteer.steering.kernels import Floats, Integers, Keep, Pairs, Pass, fused_kernel, runs
from fedsteer.steering.kernels.fused_plan import GROUP, WARP, Plan, plan_for

STAGES = 3  # steps read ahead, and one
COPIED = 1 << 10  # groups a program of `keep` copies
NO_PLACES = np.zeros((0, 0), np.int64)


def one_pass(
    updates: Tensor,
    weights: Floats,
    basis: Tensor | None,
    coefficients: Floats | None,
    rows: Integers | None,
    base: Tensor | None,
    base_scale: float,
    gram_of: Integers | None,
    meanwhile: Callable[[], object],
    keep: Keep | None,
) -> Pass | None:
    """See `Kernels.one_pass`; None where torch is the better choice."""
    count, width = len(weights), 0
    if basis is not None and coefficients is not None:
        width = len(coefficients)
    if not width:
        basis = rows = None
    pairs = gram_of is not None and len(gram_of) > 1
    plan = plan_for(updates, basis, rows, base, gram=pairs)
    if plan is None:
        return None
    running = launch(plan, updates, weights, basis, coefficients, rows, base, base_scale)
    summed, places = torch.cuda.Event(), NO_PLACES
    try:
        summed.record(torch.cuda.current_stream(updates.device))
        if keep and basis is not None and rows is None:
            keep.queued = True
            _keep(plan, keep.pairs, updates, basis, running.near)
        meanwhile()
        if gram_of is not None and len(gram_of):
            places = plan.cut.places[gram_of[:, None], gram_of]
        written = running.sums.numpy()
    finally:  # the GPU still writes to them
        summed.synchronize()
    found: Floats = written.copy()  # memory of this kind is scarce: nobody is to hold on to it
    inner = plan.cut.width * plan.cut.count
    products = found[:inner].reshape(plan.cut.width, plan.cut.count)[:width, :count]
    squares, queued = found[inner : inner + count], keep is not None and keep.queued
    return Pass(running.delta, products, squares, found.take(places), found.item(-1), queued)


class Running(NamedTuple):
    """What a GPU is still computing: to be held till then."""

    delta: Tensor
    sums: Tensor  # in the host's memory
    near: Tensor  # the same, beside delta


def launch(
    plan: Plan,
    updates: Tensor,
    weights: Floats,
    basis: Tensor | None,
    coefficients: Floats | None,
    rows: Integers | None,
    base: Tensor | None,
    base_scale: float,
) -> Running:
    """Start the pass."""
    cut, programs, device = plan.cut, plan.programs, updates.device
    count, dim = updates.shape
    steer = [] if coefficients is None or basis is None else coefficients.tolist()
    missing = cut.width - len(steer)
    picked = updates  # not looked at
    if rows is not None:
        picked = torch.as_tensor(np.pad(rows, (0, missing), "edge"), device=device)
    delta = torch.empty(dim, dtype=torch.float32, device=device)
    partial = torch.empty(cut.sums * programs, dtype=torch.float32, device=device)
    known, added = updates if basis is None else basis, delta if base is None else base
    arrays: tuple[Tensor, ...] = updates, known, added, picked, delta, partial
    numbers = (
        *plan.sizes, float(base_scale), count,
        (*weights.tolist(), *[0.0] * (cut.count - count)),
        (*steer, *[0.0] * (missing + 1)),  # one too many: never empty
        cut.count, cut.width, cut.sums, cut.gram, rows is not None, base is not None,
        cut.positions, STAGES, GROUP, WARP,
    )  # fmt: skip
    options = {"num_warps": 1, "num_stages": STAGES, "maxnreg": cut.registers}
    _start(plan, fused_kernel.sweep, (programs, 1, 1), arrays, numbers, options)
    sums = torch.empty(cut.sums, dtype=torch.float64, pin_memory=True)
    near = torch.empty(cut.sums, dtype=torch.float64, device=device)
    block = 1 << (programs - 1).bit_length()
    arrays, grid = (partial, sums, near), (cut.sums, 1, 1)
    _start(plan, fused_kernel.add_up, grid, arrays, (programs, block), {"num_warps": 4})
    return Running(delta, sums, near)


def _keep(plan: Plan, pairs: Pairs, updates: Tensor, basis: Tensor, near: Tensor) -> None:
    """basis[row] = updates[position] behind `launch`, for all pairs of these."""
    cut, dim = plan.cut, updates.shape[1]
    block, norms = COPIED * cut.positions, 1 << cut.count.bit_length()
    for row, position, many in runs(pairs):
        numbers = (
            *plan.sizes, position, row,
            cut.count, cut.width, cut.sums, cut.positions, norms, block,
        )  # fmt: skip
        grid, arrays = (-(-dim // block), many, 1), (updates, basis, near)
        _start(plan, fused_kernel.keep, grid, arrays, numbers, {"num_warps": 4})


def _start(
    plan: Plan,
    kernel: Any,
    grid: tuple[int, int, int],
    arrays: tuple[Tensor, ...],
    numbers: tuple[object, ...],
    options: dict[str, int],
) -> None:
    """Launch beside the first array. Arrays of one plan are alike in all that Triton compiles for.

    Triton's own ways to find that out and to start what it compiled take longer than all else here;
    profilers that hook into the latter see the first launch only.
    """
    device = arrays[0].device
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _start(plan, kernel, grid, arrays, numbers, options)
    known = plan.compiled.get(kernel.__name__)
    if known is None:
        plan.compiled[kernel.__name__] = kernel[grid](*arrays, *numbers, **options)
        return None
    stream, hooks = driver.active.get_current_stream(device.index), (None, None, None)
    given = *[array.data_ptr() for array in arrays], *numbers  # Triton would look each one up
    try:
        known.run(*grid, stream, known.function, known.packed_metadata, *hooks, *given)
    except TypeError:  # a version of Triton that starts kernels otherwise
        known[grid](*arrays, *numbers)
    return None
