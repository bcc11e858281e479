"""The few operations on arrays of length d, once in NumPy and once in torch.

Everything else in fedsteer has size k, m or N and is plain NumPy float64. A rule asks
`kernels_for(updates)` and never learns which library it got; torch is imported only when a torch
tensor comes in. Both modules provide the functions of `protocol.Kernels` and are tested against
each other.
`fused` is the pass of torch on a GPU on which Triton works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from fedsteer.steering.kernels.vectors import Vectors

if TYPE_CHECKING:
    from fedsteer.steering.kernels.protocol import Kernels

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
    return cast("Kernels", import_module(f"{__name__}.{library}"))
