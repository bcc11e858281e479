"""`one_pass` as a Triton kernel that reads every number once. Importing this needs Triton 3.3.

Without it, `fedsteer.gpu` does not import this module and torch does the work. A program is one
warp that walks over the positions. A thread holds the k + m values of a few positions and, over all
positions it visits, a running sum for each number that is asked for:

    h_j . g_i        g_i . g_l (l <= i)        |Delta|^2,  Delta = b + sum_j c_j h_j + sum_i a_i g_i

Each sum is a register of its own: k = m = 10 takes 111 of them, or 156 with the Gram matrix. torch
then adds up the sums of all programs in float64, and one small tensor goes to the host.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedsteer.steering.kernels import Floats, Integers, Pass, Sweep, fused_kernel
from fedsteer.steering.kernels.fused_plan import LANES, PADDING, Plan, plan_for

SMALLEST = 1 << 22  # positions; fewer take next to no time, and compiling takes seconds
LARGEST = (1 << 31) - (1 << 24)  # positions are counted in 32 bits
STAGES = 3
ALIGNED = 16  # bytes: the alignment Triton needs to read several numbers at once


def one_pass(sweep: Sweep) -> Pass | None:
    """See `Kernels.one_pass`; None if torch should do it."""
    plan = suitable_plan(sweep)
    if plan is None:
        return None
    delta, sums = launch(plan, sweep)
    found = sums.cpu().numpy()
    count, width, chosen = len(sweep.weights), len(sweep.coefficients), sweep.gram_of
    inner = plan.width * plan.count
    return Pass(
        delta=delta,
        products=found[:inner].reshape(plan.width, plan.count)[:width, :count],
        squared_norms=found[inner : inner + count],
        gram=found[plan.places[chosen[:, None], chosen]],
        delta_squared_norm=float(found[-1]),
    )


def suitable_plan(sweep: Sweep) -> Plan | None:
    """How to pass over these arrays; None if the kernel cannot, or is not worth it."""
    updates, width = sweep.updates, len(sweep.coefficients)
    basis = sweep.basis if width else None
    arrays = [array for array in (updates, basis, sweep.base) if array is not None]
    count, dim = updates.shape
    if not count or not SMALLEST <= dim <= LARGEST:
        return None
    if any(array.stride(-1) != 1 or array.device != updates.device for array in arrays):
        return None
    divisor = 1  # how many neighbours can be read at once from each row
    if not any(array.data_ptr() % ALIGNED for array in arrays):
        most = 4 if updates.dtype.itemsize == 2 else 2
        divisor = math.gcd(most, dim, *(array.stride(0) for array in arrays if array.ndim == 2))
    picked = width > 0 and sweep.rows is not None
    gram = len(sweep.gram_of) > 1
    return plan_for(count, width, picked=picked, gram=gram, divisor=divisor)


def launch(plan: Plan, sweep: Sweep) -> tuple[Tensor, Tensor]:
    """Delta and the float64 sums, both on the GPU, which may still be computing them."""
    updates, width = sweep.updates, len(sweep.coefficients)
    count, dim = updates.shape
    matrix, picked = updates, None
    if width:
        matrix = sweep.basis
        if sweep.rows is not None:
            picked = _beside(sweep.rows, plan.width, updates.device)
    with torch.cuda.device_of(updates):
        programs = plan.programs * _processors(updates.device)
        delta = updates.new_empty(dim, dtype=torch.float32)
        partial = updates.new_empty((plan.sums, programs), dtype=torch.float32)
        fused_kernel.sweep[(programs,)](
            updates=updates,
            weights=_padded(sweep.weights, plan.count),
            count=count,
            update_groups=updates.stride(0) // plan.positions,
            basis=matrix,
            coefficients=_padded(sweep.coefficients, plan.width + 1),
            width=width,
            basis_groups=matrix.stride(0) // plan.positions,
            rows=picked,
            base=sweep.base,
            base_scale=float(sweep.base_scale),
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
    return (*values.tolist(), *[0.0] * (length - len(values)))


def _beside(rows: Integers, length: int, device: torch.device) -> Tensor:
    """On the device, with zeros up to this length."""
    filled = np.zeros(length, np.int64)
    filled[: len(rows)] = rows
    return torch.from_numpy(filled).to(device)


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
