"""The kernels in torch, on whatever device the updates are. See `Kernels`."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.gpu import kernels_beside
from fedsteer.gpu.precision import exact_products
from fedsteer.steering.kernels import Floats, Integers, Pass, Sweep
from fedsteer.steering.kernels import numpy as in_numpy
from fedsteer.steering.kernels.vectors import LARGE, Vectors

# Blocks bound the memory of intermediate results, and one block keeps a GPU busy. Within a block,
# inner products are taken over short pieces, all at once, and summed in float64: one long and thin
# product would run on a single core and lose digits.
CPU_BLOCK = 1 << 17
GPU_BLOCK = 1 << 24
WIDENED = 1 << 27  # most numbers copied to float64 at once: a gigabyte
PIECE = 8_192
FUSED = "fedsteer.steering.kernels.fused"

Rows: TypeAlias = Tensor | Vectors


def _blocks(array: Rows, widened: int = 0) -> Iterator[slice]:
    """Of the last dimension; `widened` rows are copied to float64 in each block."""
    dim, size = array.shape[-1], CPU_BLOCK if array.device.type == "cpu" else GPU_BLOCK
    if widened:
        size = min(size, max(WIDENED // widened, PIECE))
    for start in range(0, dim, size):
        yield slice(start, min(start + size, dim))


def _pieces(block: Tensor) -> Tensor:
    """(rows, n * PIECE) -> (n, rows, PIECE), a view."""
    return block.unflatten(1, (block.shape[1] // PIECE, PIECE)).transpose(0, 1)


def _inner(left: Tensor, right: Tensor) -> Tensor:
    """left @ right.T, summed in float64 from short pieces."""
    whole = left.shape[1] - left.shape[1] % PIECE
    if not whole:
        return left @ right.T
    short = torch.bmm(_pieces(left[:, :whole]), _pieces(right[:, :whole]).mT)
    result = short.sum(dim=0, dtype=torch.float64)
    if whole < left.shape[1]:
        result += left[:, whole:] @ right[:, whole:].T
    return result


def _squares(block: Tensor) -> Tensor:
    """Squared norms of the rows. `vecdot` would write out all squares before it sums them."""
    if block.is_cpu:  # sums each row in vector lanes, which is in pieces already
        return torch.linalg.vector_norm(block, dim=1).square_()
    whole = block.shape[1] - block.shape[1] % PIECE
    result = torch.linalg.vector_norm(block[:, whole:], dim=1).square().double()
    if whole:
        short = torch.linalg.vector_norm(_pieces(block[:, :whole]), dim=2)
        result += short.square().sum(dim=0, dtype=torch.float64)
    return result


def _wide(array: Rows) -> torch.dtype:
    return torch.float64 if array.dtype == torch.float64 else torch.float32


def _beside(values: Floats | Integers, like: Rows, dtype: torch.dtype) -> Tensor:
    # NumPy casts a few numbers faster than torch.
    return torch.from_numpy(values.astype(str(dtype).removeprefix("torch."))).to(like.device)


def _host(array: Tensor) -> Floats:
    return array.detach().double().cpu().numpy().copy()


def one_pass(sweep: Sweep) -> Pass:
    updates, basis, rows, chosen = sweep.updates, sweep.basis, sweep.rows, sweep.gram_of
    on_cpu = updates.device.type == "cpu"
    fused = None if sweep.precise or on_cpu else kernels_beside(updates, FUSED)
    if fused is not None:
        found: Pass | None = fused.one_pass(sweep)
        if found is not None:
            return found
    count, dim = updates.shape
    work = torch.float64 if sweep.precise else _wide(updates)
    weigh = _beside(sweep.weights, updates, work)
    steer = _beside(sweep.coefficients, updates, work)
    picked = None if rows is None else _beside(rows, updates, torch.int64)
    every = np.array_equal(chosen, np.arange(count))
    core = _beside(chosen, updates, torch.int64)

    products = np.zeros((len(steer), count))
    squared_norms = np.zeros(count)
    gram = np.zeros((len(chosen), len(chosen)))
    delta_squared_norm = 0.0
    delta = torch.empty(dim, dtype=work, device=updates.device)
    with exact_products(updates):
        for block in _blocks(updates):
            fresh = updates[:, block].to(work)
            out = torch.mv(fresh.T, weigh, out=delta[block])
            if len(steer):
                known = (basis[:, block] if picked is None else basis[picked, block]).to(work)
                products += _inner(known, fresh).numpy(force=True)
                out.addmv_(known.T, steer)
            if sweep.base is not None:
                out += sweep.base_scale * sweep.base[block]
            if not every:
                squared_norms += _squares(fresh).numpy(force=True)
            if len(chosen):
                part = fresh if every else fresh[core]
                gram += _inner(part, part).numpy(force=True)
            delta_squared_norm += float(torch.dot(out, out))
    narrow = delta.to(_wide(updates))
    if narrow.dtype != work and not narrow.isfinite().all():  # too large for the narrower type
        delta_squared_norm = np.inf
    return Pass(
        delta=narrow,
        products=products,
        squared_norms=gram.diagonal().copy() if every else squared_norms,
        gram=gram,
        delta_squared_norm=delta_squared_norm,
    )


def add_rows(target: Tensor, weights: Floats, rows_of: Rows, rows: Integers | None = None) -> None:
    weigh = _beside(weights, target, torch.float64)
    picked = None if rows is None else _beside(rows, rows_of, torch.int64)
    for block in _blocks(target, widened=len(weights)):
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


def products(left: Rows, right: Rows) -> Floats:
    result = torch.zeros((len(left), len(right)), dtype=torch.float64, device=left.device)
    for block in _blocks(left, widened=len(left) + len(right)):
        result += left[:, block].double() @ right[:, block].double().T
    return _host(result)


@lru_cache(maxsize=4)
def _signs(dim: int, seed: int, device: torch.device) -> Tensor:
    return torch.tensor(in_numpy.sketch_signs(dim, seed), device=device)


def sketch(updates: Rows, width: int, seed: int) -> Floats:
    if isinstance(updates, Vectors):
        return np.concatenate([sketch(row[None], width, seed) for row in updates])
    dim = updates.shape[1]
    signed = updates.to(_wide(updates)) * _signs(dim, seed, updates.device)
    whole = dim - dim % width
    result = signed[:, :whole].reshape(len(updates), whole // width, width).sum(dim=1)
    result[:, : dim - whole] += signed[:, whole:]
    return _host(result)


def allocate(shape: tuple[int, ...], like: Rows, dtype: str | None = None) -> Tensor:
    kind = like.dtype if dtype is None else getattr(torch, dtype)
    with torch.inference_mode(False):  # stored and written to later, maybe outside of that mode
        return torch.zeros(shape, dtype=kind, device=like.device)


def to_host(array: Tensor) -> tuple[NDArray[Any], str]:
    host = array.detach().cpu()
    if host.dtype == torch.bfloat16:
        host = host.view(torch.uint16)
    return host.numpy(), str(array.dtype).removeprefix("torch.")


def from_host(array: NDArray[Any], dtype: str, like: Tensor | None) -> Tensor:
    with torch.inference_mode(False):
        result = torch.tensor(array)
        if dtype == "bfloat16":
            result = result.view(torch.bfloat16)
        return result if like is None else result.to(like.device)


def store(target: Tensor, numbers: Sequence[int], rows: Sequence[Tensor]) -> None:
    for number, row in zip(numbers, rows, strict=True):
        target[number] = row


def clone(array: Tensor) -> Tensor:
    with torch.inference_mode(False):
        return array.detach().clone()


def check(updates: Rows) -> str | None:
    dtype = updates.dtype
    if not dtype.is_floating_point or dtype.itemsize == 1:
        return f"updates must be float16, bfloat16, float32 or float64, not {dtype}"
    return None


def stack(updates: Sequence[Tensor]) -> Rows:
    first = updates[0]
    long = first.is_cpu and len(first) >= LARGE
    if long and all(one.dtype == first.dtype and one.is_contiguous() for one in updates):
        return Vectors([one.detach() for one in updates])
    return torch.stack(tuple(updates))
