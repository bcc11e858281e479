"""How `fused` goes over its arrays: what a thread holds, and how many programs run at once.

What the time depends on, measured on an H200 at d = 11 million, k = m = 10, float32: a thread that
reads two neighbours at once needs half of the instructions (0.223 ms instead of 0.270; it takes
rows that begin where a pair may: an even d), and the programs of a processor must be a multiple of
its four schedulers. Where the sums do not fit (MOST), torch does it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsteer.steering.kernels import Integers
from fedsteer.steering.kernels.vectors import ALIGNED, Vectors

SMALLEST = 1 << 22  # positions; compiling takes seconds, and a pass over fewer next to nothing
LARGEST = (1 << 31) - (1 << 24)  # positions are counted in 32 bits
WARP = 32
SCHEDULERS = 4  # of a processor: each has a share of its programs
REGISTERS, MOST_OF_A_THREAD, MOST_PROGRAMS = 65_536, 255, 32  # of a processor
MOST = 208  # sums and values a thread may hold
BESIDE = 16  # registers for all else
STAGES = 3  # steps read ahead, and one
GROUP = 5  # updates are counted in groups of this size, so that fewer kernels are compiled
TWO_BYTES = {torch.float16, torch.bfloat16}
APART = (0, 1)  # strides of `Vectors`: a row says itself where it begins


@dataclass(frozen=True)
class Cut:
    """What a thread holds. Of d it knows only what divides it, so that other d compile nothing."""

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


def cut_for(count: int, width: int, gram: bool, group: int) -> Cut | None:
    """With the largest part of a `group` of positions at a time; None where the sums do not fit."""
    for positions in (4, 2, 1):
        for padded in (_groups(count), count):
            found = Cut(padded, width, gram, positions)
            if positions <= group and found.sums + found.values <= MOST:
                return found
    return None


Look = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, bool, torch.device]


class Layout(NamedTuple):
    """How an array lies in memory; all that matters but its address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    aligned: bool
    device: torch.device


@dataclass(frozen=True, eq=False)
class Plan:
    """All that is the same whenever arrays lie like this: worked out once."""

    cut: Cut
    device: int  # its number
    count: int  # updates
    width: int  # rows of the basis
    dim: int
    strides: tuple[int, int]  # from row to row of updates and basis, in bytes
    steps: tuple[int, int]  # the same in groups of positions
    programs: int
    base: bool  # whether there is one
    compiled: dict[str, Any] = field(default_factory=dict)  # kernels by name, once they ran
    ways: dict[int, list[Any]] = field(default_factory=dict)  # by stream: see `fused.Way`

    @cached_property
    def groups(self) -> int:
        """Of positions: the dimension."""
        return self.dim // self.cut.positions

    @cached_property
    def constants(self) -> tuple[object, ...]:
        """What `sweep` is compiled for."""
        cut = self.cut
        sums = cut.count, cut.width, cut.sums, cut.gram
        return *sums, self.base, cut.positions, STAGES, GROUP, WARP

    @cached_property
    def options(self) -> dict[str, int]:
        """How `sweep` is compiled."""
        return {"num_warps": 1, "num_stages": STAGES, "maxnreg": self.cut.registers}


def plan_for(
    updates: Tensor | Vectors,
    basis: Tensor | Vectors | None = None,
    rows: Integers | None = None,
    base: Tensor | None = None,
    *,
    gram: bool = False,
) -> Plan | None:
    """How to pass over these arrays; None where torch is the better choice."""
    picked = None if rows is None else _groups(len(rows))
    known, added = None if basis is None else _look(basis), None if base is None else _look(base)
    return _plan(_look(updates), known, added, picked, gram)


def _look(array: Tensor | Vectors) -> Look:
    """The fields of its `Layout`, which itself would take longer to make than to look up."""
    if isinstance(array, Vectors):
        return array.shape, APART, array.dtype, array.aligned, array.device
    aligned = array.data_ptr() % ALIGNED == 0
    return array.shape, array.stride(), array.dtype, aligned, array.device


@lru_cache(maxsize=256)
def _plan(
    fresh: Look, known: Look | None, added: Look | None, picked: int | None, gram: bool
) -> Plan | None:
    updates = Layout(*fresh)
    basis = None if known is None else Layout(*known)
    base = None if added is None else Layout(*added)
    count, dim = updates.shape
    given = [layout for layout in (updates, basis, base) if layout is not None]
    if not count or not SMALLEST <= dim <= LARGEST or any(one.strides[-1] != 1 for one in given):
        return None
    if any(one.device != updates.device for one in given):
        return None  # torch says what is wrong with that
    width = 0 if basis is None else basis.shape[0] if picked is None else picked
    apart = [one.strides[0] for one in given if len(one.shape) > 1]
    group = 1
    if all(one.aligned for one in given):
        group = math.gcd(4 if updates.dtype in TWO_BYTES else 2, dim, *apart)
    cut = cut_for(count, width, gram, group)
    if cut is None:
        return None
    first, last = apart[0], apart[-1]
    return Plan(
        cut=cut,
        device=updates.device.index,
        count=count,
        width=width,
        dim=dim,
        strides=(first * updates.dtype.itemsize, last * (basis or updates).dtype.itemsize),
        steps=(first // cut.positions, last // cut.positions),
        programs=cut.together * _processors(updates.device),
        base=base is not None,
    )


def _groups(count: int) -> int:
    return -(-count // GROUP) * GROUP


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
