"""`one_pass` as one Triton kernel that reads every number once. Importing this needs Triton.

A program is one warp that walks over the positions. A thread holds the k + m values of one position
and, over all positions it meets, a running sum for each number that is asked for:

    h_j . g_i        g_i . g_l (l <= i)        |Delta|^2,  Delta = b + sum_j c_j h_j + sum_i a_i g_i

Each sum is a register of its own, held in a tuple of vectors: k = m = 10 takes 111 of them, or 156
with the Gram matrix, and nothing is spilled. (One matrix of sums would be padded to powers of two
and spill; reducing each product where it arises takes longer than reading.) The weights are kernel
arguments, operands that cost no register. Reading ahead goes through shared memory (STAGES). The
sums of all programs are added in float64.

Measured on an H200, d = 11 million, k = m = 10, float32: 0.267 ms, with the Gram matrix 0.359 ms;
STAGES and BESIDE are the best of those tried there. Where the sums do not fit (k = 10: more than 13
updates, 10 with the Gram matrix; k = 40: always), torch does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsteer.steering.kernels import Floats, Integers, Pass, fused_kernel

SMALLEST = 1 << 22  # positions; compiling takes seconds, and a pass over fewer next to nothing
LARGEST = (1 << 31) - (1 << 24)  # positions are counted in 32 bits
WARP = 32
ROOM = 176  # sums and values a thread may hold, of the 255 registers there are
BESIDE = 24  # registers for all else; fewer spill
STAGES = 4  # steps read ahead, and one
GROUP = 5  # updates are counted in groups of this size, so that fewer kernels are compiled
REGISTERS_PER_PROCESSOR, MOST_PROGRAMS = 65_536, 32
LONG = 1 << 31  # what no 32 bits can hold
_compiled = dict[tuple[object, ...], Any]()


@dataclass(frozen=True)
class Plan:
    """What is compiled; nothing here depends on d."""

    count: int  # updates, rounded up to groups where they fit
    width: int  # rows of the basis
    gram: bool
    positions: int  # a thread handles at a time

    @cached_property
    def sums(self) -> int:
        """Running sums of a thread."""
        pairs = self.count * (self.count - 1) // 2 if self.gram else 0
        return self.width * self.count + self.count + pairs + 1

    @cached_property
    def values(self) -> int:
        """Numbers a thread reads at a time."""
        return self.positions * (self.width + self.count)

    @cached_property
    def registers(self) -> int:
        """The limit to compile for; hardware hands them out by eights."""
        return min(-(-(self.sums + self.values + BESIDE) // 8) * 8, 255)

    @cached_property
    def places(self) -> Integers:
        """(count, count) where the sum for g_i . g_l stands; off the diagonal only with `gram`."""
        i, l = np.indices((self.count, self.count))  # noqa: E741
        high, low = np.maximum(i, l), np.minimum(i, l)
        pairs = self.count + high * (high - 1) // 2 + low
        places: Integers = self.width * self.count + np.where(i == l, i, pairs)
        return places

    def programs(self, processors: int) -> int:
        """As many as are at work at once."""
        each = min(REGISTERS_PER_PROCESSOR // (WARP * self.registers), MOST_PROGRAMS)
        return processors * each


@cache
def plan(count: int, width: int, gram: bool, short: bool) -> Plan | None:
    """None where the sums do not fit. `short` values, of two bytes, are read by twos if they do."""
    for positions in (2, 1) if short else (1,):
        for padded in (_groups(count), count):
            found = Plan(padded, width, gram, positions)
            if found.sums + found.values <= ROOM:
                return found
    return None


def one_pass(
    updates: Tensor,
    weights: Floats,
    basis: Tensor | None,
    coefficients: Floats | None,
    rows: Integers | None,
    base: Tensor | None,
    base_scale: float,
    gram_of: Integers | None,
) -> Pass | None:
    """See `Kernels.one_pass`; None where torch is the better choice."""
    count, dim = updates.shape
    width = 0 if basis is None else len(basis) if rows is None else len(rows)
    basis, rows = (basis, rows) if width else (None, None)
    chosen = np.empty(0, np.int64) if gram_of is None else gram_of
    given = [array for array in (updates, basis, base) if array is not None]
    if not count or not SMALLEST <= dim <= LARGEST or any(a.stride(-1) != 1 for a in given):
        return None
    grouped = width if rows is None else _groups(width)
    cut = plan(count, grouped, len(chosen) > 1, updates.element_size() == 2)
    if cut is None:
        return None
    steer = np.zeros(0) if coefficients is None or not width else coefficients
    delta, partial = launch(cut, updates, weights, basis, steer, rows, base, base_scale)
    sums: Floats = partial.sum(dim=1, dtype=torch.float64).cpu().numpy()
    inner = cut.width * cut.count
    products = sums[:inner].reshape(cut.width, cut.count)[:width, :count].copy()
    gram = sums[cut.places[chosen[:, None], chosen]] if len(chosen) else np.zeros((0, 0))
    return Pass(delta, products, sums[inner : inner + count].copy(), gram, float(sums[-1]))


def launch(
    cut: Plan,
    updates: Tensor,
    weights: Floats,
    basis: Tensor | None,
    coefficients: Floats,
    rows: Integers | None,
    base: Tensor | None,
    base_scale: float,
) -> tuple[Tensor, Tensor]:
    """Delta, and (sums, programs) running sums, both still being computed."""
    (count, dim), device = updates.shape, updates.device
    known = updates if basis is None else basis
    programs = cut.programs(_processors(device))
    delta = updates.new_empty(dim, dtype=torch.float32)
    partial = updates.new_empty((cut.sums, programs), dtype=torch.float32)
    missing = cut.width - len(coefficients)
    picked = updates  # not looked at
    if rows is not None:
        picked = torch.as_tensor(np.pad(rows, (0, missing), "edge"), device=device)
    added = delta if base is None else base
    strides = updates.stride(0), known.stride(0)
    given = (
        updates, known, added, picked, delta, partial, dim, *strides, float(base_scale), count,
        (*weights.tolist(), *[0.0] * (cut.count - count)),
        (*coefficients.tolist(), *[0.0] * (missing + 1)),  # one too many: never empty
        cut.count, cut.width, cut.sums, cut.gram, rows is not None, base is not None,
        cut.positions, STAGES, GROUP, WARP,
    )  # fmt: skip
    # All that Triton compiles another kernel for; its own way to find that out takes longer.
    long = [stride >= LONG for stride in strides]
    types = updates.dtype, known.dtype, added.dtype, picked.dtype
    key = (cut, rows is None, base is None, *types, *long, device)
    with torch.cuda.device_of(updates):
        if (kernel := _compiled.get(key)) is not None:
            kernel[(programs, 1, 1)](*given)
        else:
            _compiled[key] = fused_kernel.sweep[(programs,)](
                *given, num_warps=1, num_stages=STAGES, maxnreg=cut.registers
            )
    return delta, partial


def _groups(count: int) -> int:
    return -(-count // GROUP) * GROUP


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
