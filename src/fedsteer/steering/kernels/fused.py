"""`one_pass` as a Triton kernel that reads every number once. Importing this needs Triton.

A program is one warp that walks over the positions. A thread holds the k + m values of a few
positions and, over all positions it meets, a running sum for each number that is asked for:

    h_j . g_i        g_i . g_l (l <= i)        |Delta|^2,  Delta = b + sum_j c_j h_j + sum_i a_i g_i

Each sum is a register of its own, held in a tuple of vectors: k = m = 10 takes 111 of them, or 156
with the Gram matrix, and nothing is spilled. (One matrix of sums would be padded to powers of two
and spill; reducing each product where it arises takes longer than reading.) Weights and addresses
of rows are kernel arguments, operands that cost no register; rows may lie anywhere. Reading ahead
goes through shared memory (STAGES). A second, short kernel adds the sums of all programs in float64
and writes them to the host's memory. A third copies what is to be kept, while the host is busy with
the sums.

At d = 11 million all that takes a quarter of a millisecond, so what the host does before the launch
and after the sums counts: plans are looked up, and addresses, not tensors, are handed to Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from triton.runtime import driver

from fedsteer.steering.kernels import Floats, Integers, Keep, Pass, fused_kernel, runs
from fedsteer.steering.kernels.fused_plan import GROUP, WARP, Plan, plan_for
from fedsteer.steering.kernels.torch import renewed
from fedsteer.steering.kernels.vectors import Vectors

STAGES = 3  # steps read ahead, and one
COPIED = 1 << 10  # groups a program of `keep` copies
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
            _keep(plan, keep, updates, basis, running)
        meanwhile()
        if gram_of is not None and len(gram_of):
            places = plan.cut.places[gram_of[:, None], gram_of]
        written = running.sums.numpy()
    finally:  # the GPU still writes to them
        summed.synchronize()
    found: Floats = written.copy()  # memory of this kind is scarce: nobody is to hold on to it
    inner = plan.cut.width * plan.cut.count
    products = found[:inner].reshape(plan.cut.width, plan.cut.count)[:width, :count]
    squares = found[inner : inner + count]
    sums = products, squares, found.take(places), found.item(-1)
    return Pass(running.delta, *sums, keep, apart=True)


class Running(NamedTuple):
    """What a GPU is still computing: to be held till then."""

    delta: Tensor
    sums: Tensor  # in the host's memory
    partial: Tensor
    near: int  # where the sums stand beside delta, in `partial`


def launch(
    plan: Plan,
    updates: Tensor | Vectors,
    weights: Floats,
    basis: Tensor | Vectors | None,
    coefficients: Floats | None,
    rows: Integers | None,
    base: Tensor | None,
    base_scale: float,
) -> Running:
    """Start the pass. What its first kernel does not need comes after that: the GPU waits for it,
    but for nothing that the host does later."""
    cut, programs, device = plan.cut, plan.programs, updates.device
    count, dim = updates.shape
    held, steer = (updates, None) if basis is None else (basis, coefficients)
    fresh = _addresses(updates, cut.count)
    known = _addresses(held, cut.width + 1, rows)  # one too many: never empty
    delta = torch.empty(dim, dtype=torch.float32, device=device)
    # The sums of each program and, behind them, those of all: one allocation less.
    partial = torch.empty(cut.sums * (programs + 2), dtype=torch.float32, device=device)
    added, scratch = delta if base is None else base, partial.data_ptr()
    arrays: Arrays = updates, held, added, delta, partial
    places: Places = fresh, known, added.data_ptr(), delta.data_ptr(), scratch
    numbers = (
        plan.groups, float(base_scale), count,
        _padded(weights, cut.count), _padded(steer, cut.width + 1),
        cut.count, cut.width, cut.sums, cut.gram, plan.base,
        cut.positions, STAGES, GROUP, WARP,
    )  # fmt: skip
    options = {"num_warps": 1, "num_stages": STAGES, "maxnreg": cut.registers}
    _start(plan, device, fused_kernel.sweep, (programs, 1, 1), arrays, places, numbers, options)
    sums = torch.empty(cut.sums, dtype=torch.float64, pin_memory=True)
    near = scratch + 4 * cut.sums * programs  # aligned: programs come by fours
    arrays, grid, block = (partial, sums, sums), (cut.sums, 1, 1), 1 << (programs - 1).bit_length()
    places = scratch, sums.data_ptr(), near
    _start(plan, device, fused_kernel.add_up, grid, arrays, places, (programs, block), FOUR_WARPS)
    return Running(delta, sums, partial, near)


def _padded(values: Floats | None, many: int) -> tuple[float, ...]:
    """So many numbers, zeros behind these."""
    found = [] if values is None else values.tolist()
    return *found, *[0.0] * (many - len(found))


def _keep(
    plan: Plan, keep: Keep, updates: Tensor | Vectors, basis: Tensor | Vectors, behind: Running
) -> None:
    """basis[row] = updates[position] behind a pass, for all pairs of these."""
    apart = isinstance(updates, Vectors)
    if isinstance(basis, Vectors):
        keep.renewed = renewed(basis, updates, keep.pairs, given=keep.given)
        return
    if keep.given and apart:
        return  # the basis becomes `Vectors`, which takes copies: not before the norms are known
    keep.queued = True
    cut, dim = plan.cut, updates.shape[1]
    block, norms = COPIED * cut.positions, 1 << cut.count.bit_length()
    numbers = (
        plan.groups, *plan.steps, cut.count, cut.width, cut.sums, cut.positions, norms, block,
    )  # fmt: skip
    fresh, known, arrays = _rows(updates), _rows(basis), (updates, basis, behind.sums)
    pairs = keep.pairs
    for row, position, many in [(*pair, 1) for pair in pairs] if apart else runs(pairs):
        grid, places = (-(-dim // block), many, 1), (fresh[position], known[row], behind.near)
        _start(plan, basis.device, fused_kernel.keep, grid, arrays, places, numbers, FOUR_WARPS)


def _addresses(array: Tensor | Vectors, many: int, rows: Integers | None = None) -> tuple[int, ...]:
    """Of so many rows, or of these; where there are fewer, the last one again."""
    if rows is None:
        found = _rows(array)[:many]
    elif isinstance(array, Vectors):
        found = [array.addresses[row] for row in rows.tolist()]
    else:  # of which there may be one for every client
        first, step = array.data_ptr(), array.stride(0) * array.element_size()
        found = [first + row * step for row in rows.tolist()]
    return *found, *found[-1:] * (many - len(found))


def _rows(array: Tensor | Vectors) -> list[int]:
    """Where each begins; not to be written into."""
    if isinstance(array, Vectors):
        return array.addresses
    return _evenly(array.data_ptr(), array.stride(0) * array.element_size(), len(array))


@lru_cache(maxsize=16)
def _evenly(first: int, step: int, count: int) -> list[int]:
    return [first + row * step for row in range(count)]


def _start(
    plan: Plan,
    device: torch.device,
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
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _start(plan, device, kernel, grid, arrays, places, numbers, options)
    known = plan.compiled.get(kernel.__name__)
    if known is None:
        typed = map(_typed, arrays, places)
        known = plan.compiled[kernel.__name__] = kernel.warmup(
            *typed, *numbers, grid=grid, **options
        )
        known[grid](*places, *numbers)
        return None
    stream, hooks = driver.active.get_current_stream(device.index), (None, None, None)
    try:
        known.run(*grid, stream, known.function, known.packed_metadata, *hooks, *places, *numbers)
    except TypeError:  # a version of Triton that starts kernels otherwise
        known[grid](*places, *numbers)
    return None


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
