"""The few operations on arrays of length d, once in NumPy and once in torch.

Everything else in fedsteer has size k, m or N and is plain NumPy float64. A rule asks
`kernels_for(updates)` and never learns which library it got; torch is imported only when a torch
tensor comes in. Both modules provide the functions of `Kernels` and are tested against each other;
`fused` is the pass of torch on a GPU on which Triton works.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedsteer.errors import check_name

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Array = Any
"""A NumPy array or torch tensor with a dimension of size d, or `Vectors` for a matrix."""

Pairs = Sequence[tuple[int, int]]
"""(row of one array, row of another)."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What one pass over the updates reads and computes; see `Pass`."""

    updates: Array  # (m, d)
    weights: Floats  # (m,)
    basis: Array = None  # rows of length d; not read if there are no coefficients
    coefficients: Floats = field(default_factory=lambda: np.zeros(0))  # (k,)
    rows: Integers | None = None  # (k,) the rows of `basis` to use; default all. Not with `Vectors`
    base: Array | None = None  # (d,), added with factor `base_scale`
    base_scale: float = 1.0
    gram_of: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # updates
    precise: bool = False  # multiply in float64 even if the inputs are float32


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The results of one pass over the updates."""

    delta: Array  # (d,) base_scale * base + coefficients @ basis + weights @ updates
    products: Floats  # (k, m) basis @ updates.T
    squared_norms: Floats  # (m,) of the updates
    gram: Floats  # (c, c) of the updates whose numbers are in `gram_of`
    delta_squared_norm: float


class Kernels(Protocol):
    """The operations of size d that the module of a library has to offer."""

    def one_pass(self, sweep: Sweep) -> Pass:
        """All results in one sweep over blocks that stay in cache. Writes to none of its arrays."""

    def add_rows(
        self, target: Array, weights: Floats, rows_of: Array, rows: Integers | None = None
    ) -> None:
        """target += weights @ rows_of[rows], in place, for a (d,) float64 target."""

    def store(self, target: Array, numbers: Sequence[int], rows: Sequence[Array]) -> None:
        """target[number] = row, for each of the rows."""

    def combine(self, matrix: Floats, updates: Array) -> Array:
        """matrix @ updates: (r, m) times (m, d), in float32, or float64 for float64 updates."""

    def products(self, left: Array, right: Array) -> Floats:
        """left @ right.T, accumulated in float64."""

    def sketch(self, updates: Array, width: int, seed: int) -> Floats:
        """(m, width) sketches whose inner products estimate those of the updates."""

    def allocate(self, shape: tuple[int, ...], like: Array, dtype: str | None = None) -> Array:
        """Zeros in the library, on the device and, by default, of the dtype of `like`."""

    def to_host(self, array: Array) -> tuple[NDArray[Any], str]:
        """A NumPy array, which may share memory, and the dtype's name; bfloat16 as uint16 bits."""

    def from_host(self, array: NDArray[Any], dtype: str, like: Array | None) -> Array:
        """The inverse of `to_host`, on the device of `like`."""

    def clone(self, array: Array) -> Array:
        """An independent copy."""

    def check(self, updates: Array) -> str | None:
        """Why these updates cannot be used (not floating point, ...), or None."""

    def stack(self, updates: Any) -> Array:
        """A sequence of (d,) arrays as one (m, d) matrix, or `Vectors` if they are long."""


def library_of(array: object) -> str:
    """ "torch" for torch tensors and `Vectors` of them, "numpy" for everything else."""
    kind = type(getattr(array, "dtype", None))
    return "torch" if kind.__module__.partition(".")[0] == "torch" else "numpy"


def kernels_for(array: object) -> Kernels:
    """The kernels for the library this array belongs to."""
    return kernels_named(library_of(array))


@cache
def kernels_named(library: str) -> Kernels:
    """The kernels of "numpy" or "torch"."""
    check_name("library of arrays", library, ("numpy", "torch"))
    return cast("Kernels", import_module(f"{__name__}.{library}"))
