"""`one_pass` as a Triton kernel that reads every number once. Importing this needs Triton.

Triton 3.3 or later is needed: older versions do not accept tuples as kernel arguments. If there is
an older one or none (torch 2.4 brings 3.0), `fedsteer.gpu` does not import this module and torch
does the work.

A program is one warp that walks over the positions. A thread holds the k + m values of a few
positions and, over all positions it visits, a running sum for each number that is asked for:

    h_j . g_i        g_i . g_l (l <= i)        |Delta|^2,  Delta = b + sum_j c_j h_j + sum_i a_i g_i

Each sum is a register of its own, held in a tuple of vectors: k = m = 10 takes 111 of them, or 156
with the Gram matrix, without spilling. (A single matrix of sums would be padded to powers of two
and spill; reducing each product at once takes longer than reading.) Weights are kernel arguments,
which cost no registers. Reading ahead goes through shared memory (STAGES). torch then adds up the
sums of all programs in float64, and one small tensor goes to the host.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedsteer.steering.kernels import Floats, Integers, Pass, fused_kernel
from fedsteer.steering.kernels.fused_plan import LANES, PADDING, Plan, plan_for

SMALLEST = 1 << 22  # positions; fewer take next to no time, and compiling takes seconds
LARGEST = (1 << 31) - (1 << 24)  # positions are counted in 32 bits
STAGES = 3
ALIGNED = 16  # bytes: the alignment Triton needs to read several numbers at once


def one_pass(
    updates: Tensor,
    weights: Floats,
    basis: Tensor | None = None,
    coefficients: Floats | None = None,
    *,
    rows: Integers | None = None,
    base: Tensor | None = None,
    base_scale: float = 1.0,
    gram_of: Integers | None = None,
) -> Pass | None:
    """See `Kernels.one_pass`; None if torch should do it."""
    if basis is None or coefficients is None or not len(coefficients):
        basis, coefficients, rows = None, np.zeros(0), None
    chosen = np.zeros(0, np.int64) if gram_of is None else gram_of
    count, width = len(weights), len(coefficients)
    plan = suitable_plan(updates, basis, rows=rows, base=base, gram=len(chosen) > 1)
    if plan is None:
        return None
    delta, sums = launch(
        plan,
        updates,
        weights,
        basis,
        coefficients,
        rows=rows,
        base=base,
        base_scale=base_scale,
    )
    found = sums.cpu().numpy()
    inner = plan.width * plan.count
    return Pass(
        delta=delta,
        products=found[:inner].reshape(plan.width, plan.count)[:width, :count],
        squared_norms=found[inner : inner + count],
        gram=found[plan.places[chosen[:, None], chosen]],
        delta_squared_norm=float(found[-1]),
    )


def suitable_plan(
    updates: Tensor,
    basis: Tensor | None = None,
    *,
    rows: Integers | None = None,
    base: Tensor | None = None,
    gram: bool = False,
) -> Plan | None:
    """How to pass over these arrays; None if the kernel cannot, or is not worth it."""
    arrays = [array for array in (updates, basis, base) if array is not None]
    count, dim = updates.shape
    if not count or not SMALLEST <= dim <= LARGEST:
        return None
    if any(array.stride(-1) != 1 or array.device != updates.device for array in arrays):
        return None
    divisor = 1  # how many neighbours can be read at once from each row
    if not any(array.data_ptr() % ALIGNED for array in arrays):
        most = 4 if updates.dtype.itemsize == 2 else 2
        divisor = math.gcd(most, dim, *(array.stride(0) for array in arrays if array.ndim == 2))
    width = 0 if basis is None else len(basis) if rows is None else len(rows)
    return plan_for(count, width, picked=rows is not None, gram=gram, divisor=divisor)


def launch(
    plan: Plan,
    updates: Tensor,
    weights: Floats,
    basis: Tensor | None,
    coefficients: Floats,
    *,
    rows: Integers | None = None,
    base: Tensor | None = None,
    base_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Delta and the float64 sums, both on the GPU, which may still be computing them."""
    count, dim = updates.shape
    matrix = updates if basis is None else basis
    picked = None if rows is None else _beside(rows, plan.width, updates.device)
    with torch.cuda.device_of(updates):
        programs = plan.programs * _processors(updates.device)
        delta = updates.new_empty(dim, dtype=torch.float32)
        partial = updates.new_empty((plan.sums, programs), dtype=torch.float32)
        fused_kernel.sweep[(programs,)](
            updates=updates,
            weights=_padded(weights, plan.count),
            count=count,
            update_groups=updates.stride(0) // plan.positions,
            basis=matrix,
            coefficients=_padded(coefficients, plan.width + 1),
            width=len(coefficients),
            basis_groups=matrix.stride(0) // plan.positions,
            rows=picked,
            base=base,
            base_scale=float(base_scale),
            delta=delta,
            partial=partial,
            groups=dim // plan.positions,
            COUNT=plan.count,
            WIDTH=plan.width,
            SUMS=plan.sums,
            GRAM=plan.gram,
            POSITIONS=plan.positions,
            PADDING=PADDING,
            STAGES=STAGES,
            LANES=LANES,
            num_warps=1,
            enable_fp_fusion=True,  # off by default from Triton 3.10 on
            maxnreg=plan.registers,
        )
        return delta, partial.sum(dim=1, dtype=torch.float64)


def _padded(values: Floats, length: int) -> tuple[float, ...]:
    """With zeros up to this length."""
    return (*values.tolist(), *[0.0] * (length - len(values)))


def _beside(rows: Integers, length: int, device: torch.device) -> Tensor:
    """On the device, with zeros up to this length."""
    filled = np.zeros(length, np.int64)
    filled[: len(rows)] = rows
    return torch.from_numpy(filled).to(device)


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
