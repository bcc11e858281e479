"""The kernels in NumPy. See `Kernels` for what each function means."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsteer.steering.kernels import Floats, Integers, Pass, Sweep
from fedsteer.steering.kernels.difference import Difference
from fedsteer.steering.kernels.vectors import LARGE, Vectors

# OpenBLAS multiplies skinny matrices several times faster with its small-matrix kernels, which it
# uses if rows x columns x depth <= 10^6. Blocks are cut to stay below that, and in cache.
SMALL_PRODUCT = 1_000_000
BLOCK = 65_536

Rows: TypeAlias = NDArray[Any] | Vectors


def _blocks(dim: int, outputs: int = 1) -> Iterator[slice]:
    size = min(max(SMALL_PRODUCT // max(outputs, 1), 2_048), BLOCK)
    for start in range(0, dim, size):
        yield slice(start, min(start + size, dim))


def _wide(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    return np.float64 if dtype == np.float64 else np.float32


def one_pass(sweep: Sweep) -> Pass:
    updates, basis, rows, chosen = sweep.updates, sweep.basis, sweep.rows, sweep.gram_of
    count, dim = updates.shape
    work = np.float64 if sweep.precise else _wide(updates.dtype)
    weigh, steer = sweep.weights.astype(work), sweep.coefficients.astype(work)
    every = np.array_equal(chosen, np.arange(count))
    half = count // 2

    delta = np.empty(dim, _wide(updates.dtype))
    products = np.zeros((len(steer), count))
    squared_norms = np.zeros(count)
    gram = np.zeros((len(chosen), len(chosen)))
    delta_squared_norm = 0.0
    for block in _blocks(dim, max(len(steer), len(chosen)) * count):
        fresh = updates[:, block].astype(work, copy=False)
        out = weigh @ fresh
        if len(steer):
            known = basis[:, block] if rows is None else basis[rows, block]
            known = known.astype(work, copy=False)
            products += known @ fresh.T
            out += steer @ known
        if sweep.base is not None:
            out += sweep.base_scale * sweep.base[block]
        # Halves, or a copy, keep NumPy from calling syrk, which is slower here than gemm.
        if every:
            gram[:half] += fresh[:half] @ fresh.T
            gram[half:] += fresh[half:] @ fresh.T
        else:
            squared_norms += np.vecdot(fresh, fresh)
            if len(chosen):
                part = fresh[chosen]
                gram += part @ part.copy().T
        delta_squared_norm += float(out @ out)
        delta[block] = out
    if delta.dtype != work and not np.isfinite(delta).all():  # too large for the narrower type
        delta_squared_norm = np.inf
    return Pass(
        delta=delta,
        products=products,
        squared_norms=np.diagonal(gram).copy() if every else squared_norms,
        gram=gram,
        delta_squared_norm=delta_squared_norm,
    )


def add_rows(
    target: NDArray[Any], weights: Floats, rows_of: Rows, rows: Integers | None = None
) -> None:
    for block in _blocks(len(target)):
        part = rows_of[:, block] if rows is None else rows_of[rows, block]
        target[block] += weights @ part.astype(np.float64, copy=False)


def combine(matrix: Floats, updates: Rows) -> NDArray[Any]:
    work = _wide(updates.dtype)
    mixing = matrix.astype(work)
    if not isinstance(updates, Vectors):
        return mixing @ updates.astype(work, copy=False)
    result = np.empty((len(mixing), updates.shape[1]), work)
    for block in _blocks(updates.shape[1]):
        result[:, block] = mixing @ updates[:, block]
    return result


def products(left: Rows, right: Rows) -> Floats:
    result = np.zeros((len(left), len(right)))
    for block in _blocks(left.shape[1]):
        result += left[:, block].astype(np.float64) @ right[:, block].astype(np.float64).T
    return result


@lru_cache(maxsize=4)
def sketch_signs(dim: int, seed: int) -> NDArray[np.int8]:
    """d random signs, the same for every library and device."""
    bits = np.unpackbits(np.frombuffer(np.random.default_rng(seed).bytes(-(-dim // 8)), np.uint8))
    signs = bits[:dim].astype(np.int8) * 2 - 1
    signs.flags.writeable = False
    return signs


def sketch(updates: Rows, width: int, seed: int) -> Floats:
    count, dim = updates.shape
    signs = sketch_signs(dim, seed)
    whole = dim - dim % width
    result = np.empty((count, width))
    for row, update in zip(result, updates, strict=True):
        signed = np.asarray(update, _wide(updates.dtype)) * signs
        row[:] = signed[:whole].reshape(-1, width).sum(axis=0)
        row[: dim - whole] += signed[whole:]
    return result


def allocate(shape: tuple[int, ...], like: Rows, dtype: str | None = None) -> NDArray[Any]:
    return np.zeros(shape, like.dtype if dtype is None else _dtype(dtype))


def to_host(array: NDArray[Any]) -> tuple[NDArray[Any], str]:
    return array, array.dtype.name


def from_host(array: NDArray[Any], dtype: str, like: object) -> NDArray[Any]:
    return array.astype(_dtype(dtype), copy=True)


def store(target: NDArray[Any], numbers: Sequence[int], rows: Sequence[Any]) -> None:
    for number, row in zip(numbers, rows, strict=True):
        if isinstance(row, Difference):
            row.read(slice(0, len(row)), target[number])
        else:
            target[number] = row


def clone(array: NDArray[Any]) -> NDArray[Any]:
    return array.copy()


def check(updates: Rows) -> str | None:
    if not isinstance(updates, (np.ndarray, Vectors, Difference)):
        return f"updates must be a NumPy array or torch tensor, not {type(updates).__name__}"
    if updates.dtype.kind != "f" or updates.dtype.itemsize > 8:
        return f"updates must be float16, float32 or float64, not {updates.dtype}"
    return None


def stack(updates: Sequence[NDArray[Any] | Difference]) -> Rows:
    first = updates[0]
    if len(first) >= LARGE and all(update.dtype == first.dtype for update in updates):
        return Vectors(updates)
    return np.stack(updates)


def _dtype(name: str) -> np.dtype[Any]:
    # NumPy has no bfloat16, and float16 has less range, so such a cache is float32 here.
    return np.dtype("float32" if name == "bfloat16" else name)
