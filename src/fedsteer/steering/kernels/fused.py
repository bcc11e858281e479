"""`one_pass` as a Triton kernel that reads every number once. Importing this needs Triton.

A program is one warp that walks over the positions. A thread holds the k + m values of a few
positions and, over all positions it meets, a running sum for each number that is asked for:

    h_j . g_i        g_i . g_l (l <= i)        |Delta|^2,  Delta = b + sum_j c_j h_j + sum_i a_i g_i

Each sum is a register of its own, held in a tuple of vectors: k = m = 10 takes 111 of them, or 156
with the Gram matrix, and nothing is spilled. (One matrix of sums would be padded to powers of two
and spill; reducing each product where it arises takes longer than reading.) The weights are kernel
arguments, operands that cost no register. Reading ahead goes through shared memory (STAGES). A
second, short kernel adds the sums of all programs in float64 and writes them to the host's memory.

What the time depends on, measured on an H200 at d = 11 million, k = m = 10, float32: a thread that
reads two neighbours at once needs half of the instructions (0.223 ms instead of 0.270; it takes
rows that begin where a pair may: an even d), and the programs of a processor must be a multiple of
its four schedulers. Where the sums do not fit (MOST), torch does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton.runtime import driver

from fedsteer.steering.kernels import Floats, Integers, Pass, fused_kernel

SMALLEST = 1 << 22  # positions; compiling takes seconds, and a pass over fewer next to nothing
LARGEST = (1 << 31) - (1 << 24)  # positions are counted in 32 bits
WARP = 32
SCHEDULERS = 4  # of a processor: each has a share of its programs
REGISTERS, MOST_OF_A_THREAD, MOST_PROGRAMS = 65_536, 255, 32  # of a processor
MOST = 208  # sums and values a thread may hold
BESIDE = 16  # registers for all else
STAGES = 3  # steps read ahead, and one
GROUP = 5  # updates are counted in groups of this size, so that fewer kernels are compiled
LONG = 1 << 31  # what no 32 bits can hold
ALIGNED = 16  # bytes: what Triton asks of an address before it reads more than one number
TWO_BYTES = {torch.float16, torch.bfloat16}
NO_PLACES = np.zeros((0, 0), np.int64)
_compiled = dict[tuple[object, ...], Any]()


@dataclass(frozen=True)
class Plan:
    """What is compiled; of d it knows only what divides it."""

    count: int  # updates, rounded up to groups where they fit
    width: int  # rows of the basis
    gram: bool
    positions: int  # a thread handles at a time
    aligned: tuple[bool, ...]  # updates, basis, base: whether its memory begins where groups do

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
    def together(self) -> int:
        """Programs at work at once on a processor: as many as there are registers for."""
        need = -(-(self.sums + self.values + BESIDE) // 8) * 8  # handed out by eights
        fitting = range(SCHEDULERS, min(REGISTERS // (WARP * need), MOST_PROGRAMS) + 1, SCHEDULERS)
        return max(fitting)

    @cached_property
    def registers(self) -> int:
        """The limit to compile for."""
        return min(REGISTERS // (WARP * self.together) // 8 * 8, MOST_OF_A_THREAD)

    @cached_property
    def places(self) -> Integers:
        """(count, count) where the sum for g_i . g_l stands; off the diagonal only with `gram`."""
        i, l = np.indices((self.count, self.count))  # noqa: E741
        high, low = np.maximum(i, l), np.minimum(i, l)
        pairs = self.count + high * (high - 1) // 2 + low
        places: Integers = self.width * self.count + np.where(i == l, i, pairs)
        return places


def plan_for(
    updates: Tensor,
    basis: Tensor | None = None,
    rows: Integers | None = None,
    base: Tensor | None = None,
    *,
    gram: bool = False,
) -> Plan | None:
    """How to pass over these arrays; None where torch is the better choice."""
    count, dim = updates.shape
    given = [array for array in (updates, basis, base) if array is not None]
    if not count or not SMALLEST <= dim <= LARGEST or [a for a in given if a.stride(-1) != 1]:
        return None
    width = 0 if basis is None else basis.shape[0] if rows is None else _groups(len(rows))
    aligned = tuple([array.data_ptr() % ALIGNED == 0 for array in given])
    group = 1
    if all(aligned):
        sizes = [dim, updates.stride(0), dim if basis is None else basis.stride(0)]
        group = math.gcd(4 if updates.dtype in TWO_BYTES else 2, *sizes)
    return plan(count, width, gram, group, aligned)


@cache
def plan(
    count: int, width: int, gram: bool, group: int, aligned: tuple[bool, ...] = ()
) -> Plan | None:
    """With the largest part of a `group` of positions at a time; None where the sums do not fit."""
    for positions in (4, 2, 1):
        for padded in (_groups(count), count):
            found = Plan(padded, width, gram, positions, aligned)
            if positions <= group and found.sums + found.values <= MOST:
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
    meanwhile: Callable[[], object],
) -> Pass | None:
    """See `Kernels.one_pass`; None where torch is the better choice."""
    count, width = len(weights), 0
    if basis is not None and coefficients is not None:
        width = len(coefficients)
    if not width:
        basis = rows = None
    pairs = gram_of is not None and len(gram_of) > 1
    cut = plan_for(updates, basis, rows, base, gram=pairs)
    if cut is None:
        return None
    delta, sums = launch(cut, updates, weights, basis, coefficients, rows, base, base_scale)
    inner, places = cut.width * cut.count, NO_PLACES
    try:
        meanwhile()
        if gram_of is not None and len(gram_of):
            places = cut.places[gram_of[:, None], gram_of]
    finally:  # the GPU still writes to `sums`
        torch.cuda.current_stream(updates.device).synchronize()
    found: Floats = sums.numpy().copy()  # memory of this kind is scarce: nobody is to hold on to it
    products = found[:inner].reshape(cut.width, cut.count)[:width, :count]
    squares = found[inner : inner + count]
    return Pass(delta, products, squares, found[places], float(found[-1]))


def launch(
    cut: Plan,
    updates: Tensor,
    weights: Floats,
    basis: Tensor | None,
    coefficients: Floats | None,
    rows: Integers | None,
    base: Tensor | None,
    base_scale: float,
) -> tuple[Tensor, Tensor]:
    """Delta, and the sums in the host's memory, both still being computed: keep them till then."""
    (count, dim), device = updates.shape, updates.device
    known = updates if basis is None else basis
    steer = [] if coefficients is None or basis is None else coefficients.tolist()
    programs = cut.together * _processors(device)
    delta = torch.empty(dim, dtype=torch.float32, device=device)
    partial = torch.empty(cut.sums * programs, dtype=torch.float32, device=device)
    missing = cut.width - len(steer)
    picked = updates  # not looked at
    if rows is not None:
        picked = torch.as_tensor(np.pad(rows, (0, missing), "edge"), device=device)
    added = delta if base is None else base
    strides, group = (updates.stride(0), known.stride(0)), cut.positions
    given = (
        updates, known, added, picked, delta, partial,
        dim // group, strides[0] // group, strides[1] // group, float(base_scale), count,
        (*weights.tolist(), *[0.0] * (cut.count - count)),
        (*steer, *[0.0] * (missing + 1)),  # one too many: never empty
        cut.count, cut.width, cut.sums, cut.gram, rows is not None, base is not None,
        group, STAGES, GROUP, WARP,
    )  # fmt: skip
    types = updates.dtype, known.dtype, added.dtype, picked.dtype
    long = strides[0] // group >= LONG, strides[1] // group >= LONG
    key: tuple[object, ...] = ("sweep", cut, rows is None, base is None, types, long, device)
    options = {"num_warps": 1, "num_stages": STAGES, "maxnreg": cut.registers}
    _start(fused_kernel.sweep, key, programs, given, options, device)
    sums = torch.empty(cut.sums, dtype=torch.float64, pin_memory=True)
    block = 1 << (programs - 1).bit_length()
    added_up = partial, sums, programs, block
    key = ("add_up", block, device)
    _start(fused_kernel.add_up, key, cut.sums, added_up, {"num_warps": 4}, device)
    return delta, sums


def _start(
    kernel: Any,
    key: tuple[object, ...],
    programs: int,
    given: tuple[object, ...],
    options: dict[str, int],
    device: torch.device,
) -> None:
    """Launch; `key` is all that Triton compiles another kernel for.

    Triton's own ways to find that out and to start what it compiled take longer than all else here;
    profilers that hook into the latter see the first launch only.
    """
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _start(kernel, key, programs, given, options, device)
    known = _compiled.get(key)
    if known is None:
        _compiled[key] = kernel[(programs,)](*given, **options)
        return None
    stream, hooks = driver.active.get_current_stream(device.index), (None, None, None)
    try:
        known.run(programs, 1, 1, stream, known.function, known.packed_metadata, *hooks, *given)
    except TypeError:  # a version of Triton that starts kernels otherwise
        known[(programs, 1, 1)](*given)
    return None


def _groups(count: int) -> int:
    return -(-count // GROUP) * GROUP


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
