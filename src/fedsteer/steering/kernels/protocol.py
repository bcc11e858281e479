"""What the kernels of a library have to offer. For type checkers and readers only."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from fedsteer.steering.kernels import Array, Floats, Integers, Pairs, Pass, Sweep


class Kernels(Protocol):
    """The operations of size d."""

    def one_pass(self, sweep: Sweep) -> Pass:
        """All results in one sweep over blocks that stay in cache. Writes to none of its arrays."""

    def write_rows(self, target: Array, updates: Array, pairs: Pairs) -> None:
        """target[row] = updates[position] for each pair of these, cast to the target's type."""

    def add_rows(
        self, target: Array, weights: Floats, rows_of: Array, rows: Integers | None = None
    ) -> None:
        """target += weights @ rows_of[rows], in place, for a (d,) float64 target."""

    def combine(self, matrix: Floats, updates: Array) -> Array:
        """matrix @ updates: (r, m) times (m, d), in float32, or float64 for float64 updates."""

    def products(self, left: Array, right: Array) -> Floats:
        """left @ right.T, accumulated in float64."""

    def sketch(self, updates: Array, width: int, seed: int) -> Floats:
        """(m, width) sketches whose inner products estimate those of the updates."""

    def allocate(self, shape: tuple[int, ...], like: Array, dtype: str | None = None) -> Array:
        """Zeros in the library, on the device and, by default, of the dtype of `like`."""

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

    def stack(self, updates: Any) -> Array:
        """A sequence of (d,) arrays as one (m, d) matrix, or `Vectors` if they are long."""

    def dtype_name(self, array: Array) -> str:
        """float16, bfloat16, float32 or float64."""
