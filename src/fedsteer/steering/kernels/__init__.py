"""The few operations on arrays of length d, once in NumPy and once in torch.

Everything else in fedsteer has size k, m or N and is plain NumPy float64. A rule asks
`kernels_for(updates)` and never learns which library it got; torch is imported only when a torch
tensor comes in. Both modules provide the functions of `Kernels` and are tested against each other.
`fused` is the pass of torch on a GPU on which Triton works.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedsteer.steering.kernels.vectors import Vectors

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Array = Any
"""A NumPy array or torch tensor with a dimension of size d, or `Vectors` for a matrix."""

Pairs = Sequence[tuple[int, int]]
"""(row of one array, row of another)."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The results of one pass over the updates."""

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
        """`Pass` in one sweep over blocks that stay in cache. Writes to none of its arguments.

        rows        the rows of `basis` to use; default all. Not with `Vectors`
        base        a (d,) vector, added with factor `base_scale`
        gram_of     the updates whose Gram matrix is needed; default none
        precise     multiply in float64 even if the inputs are float32
        """

    def write_rows(self, target: Array, updates: Array, pairs: Pairs) -> None:
        """target[row] = updates[position] for each pair of these, cast to the target's type."""

    def add_rows(
        self, target: Array, weights: Floats, rows_of: Array, rows: Integers | None = None
    ) -> None:
        """target += weights @ rows_of[rows], in place, for a (d,) float64 target."""

    def combine(self, matrix: Floats, updates: Array) -> Array:
        """matrix @ updates: (r, m) times (m, d), in float32, or float64 for float64 updates."""

    def gram(self, updates: Array, columns: slice = slice(None)) -> Floats:
        """updates[:, columns] @ updates[:, columns].T, accumulated in float64."""

    def products(self, left: Array, right: Array) -> Floats:
        """left @ right.T, accumulated in float64."""

    def sketch(self, updates: Array, width: int, seed: int) -> Floats:
        """(m, width) sketches whose inner products estimate those of the updates."""

    def allocate(self, shape: tuple[int, ...], like: Array, dtype: str) -> Array:
        """Zeros of this shape and dtype, in the library and on the device of `like`."""

    def grow(self, array: Array, length: int) -> Array:
        """The same rows, with zero rows appended up to `length`."""

    def floats(self, values: Array) -> Floats:
        """A few numbers on the host, as float64."""

    def largest(self, updates: Array, position: int) -> float:
        """The largest absolute value in one of the updates."""

    def to_host(self, array: Array) -> tuple[NDArray[Any], str]:
        """A NumPy copy and the dtype's name; bfloat16 travels as its uint16 bits."""

    def from_host(self, array: NDArray[Any], dtype: str, like: Array | None) -> Array:
        """The inverse of `to_host`, on the device of `like`."""

    def clone(self, array: Array) -> Array:
        """An independent copy."""

    def check(self, updates: Array) -> str | None:
        """Why these updates cannot be used (not floating point, ...), or None."""

    def plain(self, updates: Array) -> Array:
        """Without what a library tracks beside the numbers (gradients)."""

    def stack(self, updates: Any) -> Array:
        """A sequence of (d,) arrays as one (m, d) matrix, or `Vectors` if they are long."""

    def dtype_name(self, array: Array) -> str:
        """float16, bfloat16, float32 or float64."""


def library_of(array: object) -> str:
    """ "torch" for torch tensors and `Vectors` of them, "numpy" for everything else."""
    kind = type(array.rows[0] if isinstance(array, Vectors) else array)
    return "torch" if kind.__module__.partition(".")[0] == "torch" else "numpy"


def kernels_for(array: object) -> Kernels:
    """The kernels for the library this array belongs to."""
    return kernels_named(library_of(array))


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
