"""`one_pass` as a Triton kernel that reads every number once. Importing this needs Triton.

A program is one warp that walks over the positions. A thread holds the k + m values of a few
positions and, over all positions it meets, a running sum for each number that is asked for:

    h_j . g_i        g_i . g_l (l <= i)        |Delta|^2,  Delta = b + sum_j c_j h_j + sum_i a_i g_i

Each sum is a register of its own, held in a tuple of vectors: k = m = 10 takes 111 of them, or 156
with the Gram matrix, and nothing is spilled. (One matrix of sums would be padded to powers of two
and spill; reducing each product where it arises takes longer than reading.) Weights and addresses
of rows are kernel arguments, operands that cost no register; rows may lie anywhere. Reading ahead
goes through shared memory (STAGES). A second, short kernel adds the sums of all programs in float64
and writes them to the host's memory.

At d = 11 million all that takes a quarter of a millisecond, so what the host does before the launch
and after the sums counts: plans are looked up, and addresses, not tensors, are handed to Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from triton.runtime import driver

from fedsteer.steering.kernels import Floats, Integers, Pass, fused_kernel
from fedsteer.steering.kernels.fused_plan import Plan, plan_for
from fedsteer.steering.kernels.vectors import Vectors

NO_PLACES = np.zeros((0, 0), np.int64)
FOUR_WARPS = {"num_warps": 4}
Places = tuple[int | tuple[int, ...], ...]
"""Addresses of arrays, and tuples of addresses of rows."""
Arrays = tuple[Tensor | Vectors, ...]


def one_pass(
    updates: Tensor | Vectors,
    weights: Floats,
    basis: Tensor | Vectors | None,
    coefficients: Floats | None,
    rows: Integers | None,
    base: Tensor | None,
    base_scale: float,
    gram_of: Integers | None,
) -> Pass | None:
    """See `Kernels.one_pass`; None where torch is the better choice."""
    width = 0
    if basis is not None and coefficients is not None:
        width = len(coefficients)
    if not width:
        basis = rows = None
    pairs = gram_of is not None and len(gram_of) > 1
    plan = plan_for(updates, basis, rows, base, gram=pairs)
    if plan is None:
        return None
    if plan.device != torch.cuda.current_device():
        with torch.cuda.device(plan.device):
            return one_pass(
                updates, weights, basis, coefficients, rows, base, base_scale, gram_of
            )  # fmt: skip
    way, places = Way.of(plan, updates.device), NO_PLACES
    try:
        delta = launch(plan, way, updates, weights, basis, coefficients, rows, base, base_scale)
        way.there.record(way.stream)
        if gram_of is not None and len(gram_of):
            places = plan.cut.places[gram_of[:, None], gram_of]
    except BaseException:
        way.stream.synchronize()  # the GPU may still write to what is dropped here
        raise
    way.there.synchronize()
    found: Floats = way.seen.copy()
    plan.ways[way.number].append(way)
    inner, count = plan.cut.width * plan.cut.count, plan.count
    products = found[:inner].reshape(plan.cut.width, plan.cut.count)[:width, :count]
    squares = found[inner : inner + count]
    sums = products, squares, found.take(places), found.item(-1)
    return Pass(delta, *sums)


class Way(NamedTuple):
    """How sums come to the host. Passes of one plan in one stream use it one after the other, for
    to make one takes the host twenty microseconds."""

    partial: Tensor  # the sums of each program and, behind them, those of all
    host: Tensor  # those of all, in the host's memory
    seen: Floats  # the same
    there: torch.cuda.Event  # once they have arrived
    stream: torch.cuda.Stream
    number: int  # of the stream
    places: tuple[int, int, int]  # of `partial`, of `host`, and of all sums in `partial`

    @staticmethod
    def of(plan: Plan, device: torch.device) -> Way:
        """One that is not in use."""
        number = driver.active.get_current_stream(plan.device)
        try:
            found: Way = plan.ways.setdefault(number, []).pop()
            return found
        except IndexError:
            pass
        sums, programs = plan.cut.sums, plan.programs
        partial = torch.empty(sums * (programs + 2), dtype=torch.float32, device=device)
        host = torch.empty(sums, dtype=torch.float64, device="cpu", pin_memory=True)
        first = partial.data_ptr()
        near = first + 4 * sums * programs  # aligned: programs come by fours
        stream, there = torch.cuda.current_stream(device), torch.cuda.Event()
        places = first, host.data_ptr(), near
        return Way(partial, host, host.numpy(), there, stream, number, places)


def launch(
    plan: Plan,
    way: Way,
    updates: Tensor | Vectors,
    weights: Floats,
    basis: Tensor | Vectors | None,
    coefficients: Floats | None,
    rows: Integers | None,
    base: Tensor | None,
    base_scale: float,
) -> Tensor:
    """Start the pass: Delta, while its sums are on their way. What the first kernel does not need
    comes after that: the GPU waits for it, but for nothing that the host does later."""
    cut, programs = plan.cut, plan.programs
    held, steer = (updates, None) if basis is None else (basis, coefficients)
    partial, host, *_ = way
    delta = partial.new_empty(plan.dim)
    added = delta if base is None else base
    places: Places = (
        _addresses(updates, plan.strides[0], plan.count, cut.count),
        # One too many: never empty.
        _addresses(held, plan.strides[-1], plan.width or 1, cut.width + 1, rows),
        added.data_ptr(),
        delta.data_ptr(),
        way.places[0],
    )
    numbers = (
        plan.groups, float(base_scale), plan.count,
        _padded(weights, cut.count), _padded(steer, cut.width + 1), *plan.constants,
    )  # fmt: skip
    arrays: Arrays = updates, held, added, delta, partial
    grid, options = (programs, 1, 1), plan.options
    _start(plan, way.number, fused_kernel.sweep, grid, arrays, places, numbers, options)
    grid, block = (cut.sums, 1, 1), 1 << (programs - 1).bit_length()
    arrays, numbers = (partial, host, host), (programs, block)
    _start(plan, way.number, fused_kernel.add_up, grid, arrays, way.places, numbers, FOUR_WARPS)
    return delta


def _padded(values: Floats | None, many: int) -> tuple[float, ...]:
    """So many numbers, zeros behind these."""
    found = [] if values is None else values.tolist()
    return *found, *[0.0] * (many - len(found))


def _addresses(
    array: Tensor | Vectors, stride: int, count: int, many: int, rows: Integers | None = None
) -> tuple[int, ...]:
    """Of `many` of its `count` rows, or of these; where there are fewer, the last one again."""
    if isinstance(array, Vectors):
        found = array.addresses
        if rows is not None:
            found = [found[row] for row in rows.tolist()]
        return _filled(found, many)
    if rows is None:
        return _evenly(array.data_ptr(), stride, count, many)
    first = array.data_ptr()  # one row, perhaps, for every client
    return _filled([first + row * stride for row in rows.tolist()], many)


@lru_cache(maxsize=16)
def _evenly(first: int, stride: int, count: int, many: int) -> tuple[int, ...]:
    return _filled([first + row * stride for row in range(count)], many)


def _filled(found: list[int], many: int) -> tuple[int, ...]:
    return *found[:many], *found[-1:] * (many - len(found))


def _start(
    plan: Plan,
    stream: int,
    kernel: Any,
    grid: tuple[int, int, int],
    arrays: Arrays,
    places: Places,
    numbers: tuple[object, ...],
    options: dict[str, int],
) -> None:
    """Launch a kernel on arrays, of which it gets their places in memory.

    Arrays of one plan are alike in all that Triton compiles for. Its own ways to find that out and
    to start what it compiled take longer than all else here; profilers that hook into the latter
    see the first launch only.
    """
    known = plan.compiled.get(kernel.__name__)
    if known is None:
        typed = map(_typed, arrays, places)
        known = plan.compiled[kernel.__name__] = kernel.warmup(
            *typed, *numbers, grid=grid, **options
        )
        known[grid](*places, *numbers)
        return
    function, about = known.function, known.packed_metadata
    try:
        known.run(*grid, stream, function, about, None, None, None, *places, *numbers)
    except TypeError:  # a version of Triton that starts kernels otherwise
        known[grid](*places, *numbers)


@dataclass(frozen=True)
class Address:
    """What Triton compiles for: the type of an array, and whether its address is aligned."""

    place: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        """As of a tensor."""
        return self.place


def _typed(array: Tensor | Vectors, place: int | tuple[int, ...]) -> Any:
    if not isinstance(place, tuple):
        return Address(place, array.dtype)
    # Triton looks at each row's address, whatever it is told; but others of the plan lie otherwise.
    return tuple([Address(1, array.dtype)] * len(place))
