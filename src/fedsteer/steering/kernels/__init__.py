"""The few operations that touch d numbers, once in NumPy and once in torch.

Everything else in fedsteer is of size k, m or N and readable NumPy float64. A rule asks
`kernels_for(updates)` and never learns which library it got; torch is imported only when a torch
tensor comes in. Both modules offer the functions of `Kernels` and are tested against each other.
Where Triton works, torch's pass on a GPU is `fused`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedsteer.steering.kernels.vectors import Vectors
from fedsteer.values import value

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Array = Any
"""A NumPy array or torch tensor with a dimension of size d, or `Vectors` for a matrix."""


Pairs = Sequence[tuple[int, int]]
"""(row of one array, row of another)."""


@value
class Pass:
    """What one pass over the updates yields."""

    delta: Array  # (d,) base + coefficients @ basis + weights @ updates
    products: Floats  # (k, m) basis @ updates.T
    squared_norms: Floats  # (m,) of the updates
    gram: Floats  # (c, c) of the updates named in `gram_of`
    delta_squared_norm: float

    @property
    def bad(self) -> list[int]:
        """Positions of updates whose norm is not finite."""
        squares = self.squared_norms.tolist()
        if math.isfinite(sum(squares)):
            return []
        return [i for i, square in enumerate(squares) if not math.isfinite(square)]


class Kernels(Protocol):
    """The operations of size d."""

    def one_pass(
        self,
        updates: Array,
        weights: Floats,
        basis: Array | None = None,
        coefficients: Floats | None = None,
        *,
        rows: Integers | None = None,
        base: Array | None = None,
        base_scale: float = 1.0,
        gram_of: Integers | None = None,
        precise: bool = False,
    ) -> Pass:
        """`Pass` in one sweep over blocks that stay in cache.

        `rows` picks rows of `basis`; `base` is a (d,) vector added with factor `base_scale`;
        `precise` multiplies in float64 even if the inputs are float32. Nothing is written to.
        """

    def write_rows(self, target: Array, updates: Array, pairs: Pairs) -> None:
        """target[row] = updates[position] for each pair of these, cast to the target's type."""

    def add_rows(
        self, target: Array, weights: Floats, rows_of: Array, rows: Integers | None = None
    ) -> None:
        """target += weights @ rows_of[rows], in place, for a (d,) float64 target."""

    def combine(self, matrix: Floats, updates: Array) -> Array:
        """matrix @ updates: (r, m) times (m, d), as wide floats."""

    def gram(self, updates: Array, columns: slice = slice(None)) -> Floats:
        """updates[:, columns] @ updates[:, columns].T, accumulated in float64 blocks."""

    def products(self, left: Array, right: Array) -> Floats:
        """left @ right.T, accumulated in float64 blocks."""

    def sketch(self, updates: Array, width: int, seed: int) -> Floats:
        """(m, width) sketches whose inner products estimate those of the updates."""

    def allocate(self, shape: tuple[int, ...], like: Array, dtype: str) -> Array:
        """Zeros of that shape and dtype name beside `like` (same library, same device)."""

    def grow(self, array: Array, length: int) -> Array:
        """The same rows with zero rows appended up to `length`."""

    def floats(self, values: Array) -> Floats:
        """A few numbers on the host, as float64."""

    def largest(self, updates: Array, position: int) -> float:
        """The largest number of one of the updates, without its sign."""

    def to_host(self, array: Array) -> tuple[NDArray[Any], str]:
        """A NumPy copy and the dtype's name; bfloat16 travels as its uint16 bits."""

    def from_host(self, array: NDArray[Any], dtype: str, like: Array | None) -> Array:
        """The inverse of `to_host`, on the device of `like`."""

    def clone(self, array: Array) -> Array:
        """An independent copy."""

    def check(self, updates: Array) -> str | None:
        """Why these updates cannot be used (not floating point, ...), or None."""

    def plain(self, updates: Array) -> Array:
        """Without whatever a library tracks beside the numbers (gradients)."""

    def stack(self, updates: Any) -> Array:
        """A sequence of (d,) arrays as one (m, d) array: where they are long, as `Vectors`."""

    def dtype_name(self, array: Array) -> str:
        """float16, bfloat16, float32 or float64."""


def library_of(array: object) -> str:
    """ "torch" for torch tensors and vectors of them, "numpy" for everything else."""
    return _library_of(_kind(array))


def kernels_for(array: object) -> Kernels:
    """The kernels for the library this array belongs to."""
    return _kernels_for(_kind(array))


def _kind(array: object) -> type:
    """Of each row, where there are several arrays."""
    return type(array.rows[0] if type(array) is Vectors else array)


@cache
def _library_of(kind: type) -> str:
    return "torch" if kind.__module__.partition(".")[0] == "torch" else "numpy"


@cache
def _kernels_for(kind: type) -> Kernels:
    return kernels_named(_library_of(kind))


@cache
def kernels_named(library: str) -> Kernels:
    """The kernels of "numpy" or "torch"."""
    return cast(Kernels, import_module(f"{__name__}.{library}"))


@lru_cache(maxsize=4)
def sketch_signs(dim: int, seed: int) -> NDArray[np.int8]:
    """d random signs, the same for every library and device."""
    bits = np.unpackbits(np.frombuffer(np.random.default_rng(seed).bytes(-(-dim // 8)), np.uint8))
    signs = bits[:dim].astype(np.int8) * 2 - 1
    signs.flags.writeable = False
    return signs
