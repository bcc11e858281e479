"""The kernels in torch, on whatever device the updates live. See `Kernels`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.gpu import kernels_beside
from fedsteer.gpu.precision import exact_products
from fedsteer.steering.kernels import (
    Floats,
    Integers,
    Pairs,
    Pass,
    fused_plan,
    sketch_signs,
)
from fedsteer.steering.kernels.vectors import LARGE, Vectors

# A block bounds the memory of what is computed on the way and fills a GPU. Within a block, inner
# products are taken over short pieces, all at once, and summed in float64: one long and thin
# product would keep a single core busy and lose digits.
CPU_BLOCK = 1 << 17
GPU_BLOCK = 1 << 24
WIDENED = 1 << 27  # most numbers copied to float64 at once: a gigabyte
PIECE = 8_192
FUSED = "fedsteer.steering.kernels.fused"
SHORT = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}


Rows: TypeAlias = Tensor | Vectors
Makes = TypeVar("Makes", bound=Callable[..., Any])


def lasting(function: Makes) -> Makes:
    """For what is kept: it is written to again, perhaps outside of a caller's inference mode."""
    wrapped: Makes = torch.inference_mode(False)(function)
    return wrapped


def _blocks(array: Rows, widened: int = 0) -> list[slice]:
    """Of the last dimension; `widened` rows are copied to float64 in each block."""
    dim, size = array.shape[-1], CPU_BLOCK if array.device.type == "cpu" else GPU_BLOCK
    if widened:
        size = min(size, max(WIDENED // widened, PIECE))
    return [slice(start, min(start + size, dim)) for start in range(0, dim, size)]


def _pieces(block: Tensor) -> Tensor:
    """(rows, n * PIECE) -> (n, rows, PIECE), a view."""
    return block.unflatten(1, (block.shape[1] // PIECE, PIECE)).transpose(0, 1)


def _inner(left: Tensor, right: Tensor) -> Tensor:
    """left @ right.T in float64, from short pieces."""
    whole = left.shape[1] - left.shape[1] % PIECE
    if not whole:
        return (left @ right.T).double()
    short = torch.bmm(_pieces(left[:, :whole]), _pieces(right[:, :whole]).mT)
    result = short.sum(dim=0, dtype=torch.float64)
    if whole < left.shape[1]:
        result += left[:, whole:] @ right[:, whole:].T
    return result


def _squares(block: Tensor) -> Tensor:
    """Squared norms of the rows. Not by vecdot: that writes all squares out before it sums them."""
    if block.is_cpu:  # which sums a row in the lanes of a vector: in pieces already
        return torch.linalg.vector_norm(block, dim=1).square_()
    whole = block.shape[1] - block.shape[1] % PIECE
    result = torch.linalg.vector_norm(block[:, whole:], dim=1).square().double()
    if whole:
        short = torch.linalg.vector_norm(_pieces(block[:, :whole]), dim=2)
        result += short.square().sum(dim=0, dtype=torch.float64)
    return result


def _wide(array: Tensor) -> torch.dtype:
    return torch.float64 if array.dtype == torch.float64 else torch.float32


def _beside(values: Floats | Integers, like: Rows, dtype: torch.dtype) -> Tensor:
    short = torch.from_numpy(values.astype(SHORT[dtype]))
    return short if like.device.type == "cpu" else short.to(like.device)


def _part(array: Rows, block: slice) -> Tensor:
    """These of the last dimension. (A call that changes nothing takes its time as well.)"""
    if isinstance(array, Vectors):
        return array[:, block]
    return array if block.stop - block.start == array.shape[-1] else array[..., block]


def _as(array: Tensor, dtype: torch.dtype) -> Tensor:
    return array if array.dtype == dtype else array.to(dtype)


def _host(array: Tensor) -> Floats:
    near: NDArray[Any] = array.numpy() if array.is_cpu else array.cpu().numpy()
    return near.astype(np.float64)


def one_pass(
    updates: Rows,
    weights: Floats,
    basis: Tensor | None = None,
    coefficients: Floats | None = None,
    *,
    rows: Integers | None = None,
    base: Tensor | None = None,
    base_scale: float = 1.0,
    gram_of: Integers | None = None,
    precise: bool = False,
) -> Pass:
    fused = None if precise else kernels_beside(updates, FUSED)
    if fused is not None:
        more = rows, base, base_scale, gram_of
        found: Pass | None = fused.one_pass(updates, weights, basis, coefficients, *more)
        if found is not None:
            return found
    known = basis, coefficients, rows
    with exact_products(updates):
        return _by_torch(updates, weights, *known, base, base_scale, gram_of, precise)


def _by_torch(
    updates: Rows,
    weights: Floats,
    basis: Tensor | None,
    coefficients: Floats | None,
    rows: Integers | None,
    base: Tensor | None,
    base_scale: float,
    gram_of: Integers | None,
    precise: bool,
) -> Pass:
    count, dim = updates.shape
    width = 0 if basis is None else len(basis) if rows is None else len(rows)
    chosen = None if gram_of is None or not len(gram_of) else gram_of
    every = chosen is not None and np.array_equal(chosen, np.arange(count))
    work = torch.float64 if precise else _wide(updates)
    weigh = _beside(weights, updates, work)
    steer = None if coefficients is None else _beside(coefficients, updates, work)
    picked = None if rows is None else _beside(rows, updates, torch.int64)
    core = None if chosen is None else _beside(chosen, updates, torch.int64)

    blocks = _blocks(updates)
    delta = None
    if len(blocks) != 1:
        delta = torch.empty(dim, dtype=work, device=updates.device)
    sums: dict[str, Tensor] = {}  # over the blocks, in float64 where there are several

    def add(name: str, part: Tensor) -> None:
        sums[name] = sums[name] + part.double() if name in sums else part

    for block in blocks:
        fresh = _as(_part(updates, block), work)
        out = torch.mv(fresh.T, weigh, out=None if delta is None else delta[block])
        if width:
            assert basis is not None and steer is not None
            known = _part(basis, block) if picked is None else basis[picked, block]
            known = _as(known, work)
            add("products", _inner(known, fresh))
            out.addmv_(known.T, steer)
        if base is not None:
            out += base_scale * base[block]
        if not every:
            add("squares", _squares(fresh))
        if core is not None:
            part = fresh if every else fresh[core]
            add("gram", _inner(part, part))
        add("length", torch.dot(out, out))
    delta = _as(out if delta is None else delta, _wide(updates))
    if delta.dtype != work and not delta.isfinite().all():  # it was, in the wider type
        sums["length"] = delta.new_tensor(torch.inf, dtype=work)
    back = _all_to_host(sums)
    gram = back.get("gram", np.zeros((0, 0)))
    return Pass(
        delta,
        back.get("products", np.zeros((width, count))),
        gram.diagonal().copy() if every else back["squares"],
        gram,
        float(back["length"]),
    )


def _all_to_host(sums: dict[str, Tensor]) -> dict[str, Floats]:
    """One way back for all of them: every one waits for the device."""
    parts = list(sums.values())
    if all(part.is_cpu for part in parts):
        return {name: _host(part) for name, part in sums.items()}
    back = _host(torch.cat([part.reshape(-1) for part in parts]))
    pieces = np.split(back, np.cumsum([part.numel() for part in parts[:-1]]))
    shaped = zip(sums.items(), pieces, strict=True)
    return {name: piece.reshape(part.shape) for (name, part), piece in shaped}


def write_rows(target: Tensor, updates: Rows, pairs: Pairs) -> None:
    for row, position in pairs:
        target[row] = updates[position]


def add_rows(target: Tensor, weights: Floats, rows_of: Rows, rows: Integers | None = None) -> None:
    weigh = _beside(weights, target, torch.float64)
    picked = None if rows is None else _beside(rows, rows_of, torch.int64)
    rows_read = len(rows_of) if rows is None else len(rows)
    for block in _blocks(target, widened=rows_read):
        part = rows_of[:, block] if picked is None else rows_of[picked, block]
        target[block] += weigh @ part.double()


def combine(matrix: Floats, updates: Rows) -> Tensor:
    work = _wide(updates)
    mixing = _beside(matrix, updates, work)
    with exact_products(updates):
        if not isinstance(updates, Vectors):
            return mixing @ updates.to(work)
        result = torch.empty((len(mixing), updates.shape[1]), dtype=work, device=updates.device)
        for block in _blocks(updates):
            torch.matmul(mixing, updates[:, block].to(work), out=result[:, block])
        return result


def gram(updates: Rows, columns: slice = slice(None)) -> Floats:
    return products(updates[:, columns], updates[:, columns])


def products(left: Rows, right: Rows) -> Floats:
    result = torch.zeros((len(left), len(right)), dtype=torch.float64, device=left.device)
    for block in _blocks(left, widened=len(left) + len(right)):
        result += left[:, block].double() @ right[:, block].double().T
    return _host(result)


@lru_cache(maxsize=4)
def _signs(dim: int, seed: int, device: torch.device) -> Tensor:
    return torch.tensor(sketch_signs(dim, seed), device=device)


def sketch(updates: Rows, width: int, seed: int) -> Floats:
    if isinstance(updates, Vectors):
        return np.concatenate([sketch(row[None], width, seed) for row in updates])
    dim = updates.shape[1]
    signed = updates.to(_wide(updates)) * _signs(dim, seed, updates.device)
    whole = dim - dim % width
    result = signed[:, :whole].reshape(len(updates), whole // width, width).sum(dim=1)
    result[:, : dim - whole] += signed[:, whole:]
    return _host(result)


@lasting
def allocate(shape: tuple[int, ...], like: Rows, dtype: str) -> Tensor:
    return torch.zeros(shape, dtype=getattr(torch, dtype), device=like.device)


@lasting
def grow(array: Tensor, length: int) -> Tensor:
    grown = array.new_zeros((length, *array.shape[1:]))
    grown[: len(array)] = array
    return grown


def floats(values: Tensor) -> Floats:
    return _host(values.detach().double())


def largest(updates: Rows, position: int) -> float:
    return float(torch.linalg.vector_norm(updates[position], torch.inf))


def to_host(array: Tensor) -> tuple[NDArray[Any], str]:
    host = array.detach().cpu()
    if host.dtype == torch.bfloat16:
        return host.view(torch.uint16).numpy().copy(), "bfloat16"
    return host.numpy().copy(), dtype_name(array)


@lasting
def from_host(array: NDArray[Any], dtype: str, like: Tensor | None) -> Tensor:
    result = torch.tensor(array)
    if dtype == "bfloat16":
        result = result.view(torch.bfloat16)
    return result if like is None else result.to(like.device)


@lasting
def clone(array: Tensor) -> Tensor:
    return array.detach().clone()


def check(updates: Rows) -> str | None:
    return _unusable(updates.dtype)


@cache
def _unusable(dtype: torch.dtype) -> str | None:
    if not dtype.is_floating_point or dtype.itemsize == 1:
        return f"updates must be float16, bfloat16, float32 or float64, not {dtype}"
    return None


def plain(updates: Rows) -> Rows:
    if isinstance(updates, Vectors) or not updates.requires_grad:
        return updates
    return updates.detach()


def stack(updates: Sequence[Tensor]) -> Rows:
    """Those of large models stay where they are; on a GPU, if the fused pass reads them there."""
    first, dtype = updates[0], updates[0].dtype
    if first.is_cpu:
        apart = first.numel() >= LARGE
    else:
        fits = first.numel() >= fused_plan.SMALLEST
        apart = fits and kernels_beside(first, FUSED) is not None
    if not apart or False in [one.dtype == dtype and one.is_contiguous() for one in updates]:
        return torch.stack(tuple(updates))
    return Vectors([one.detach() if one.requires_grad else one for one in updates])


def dtype_name(array: Rows) -> str:
    return _name(array.dtype)


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
