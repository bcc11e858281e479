"""The global model: named arrays as Flower sends them, a flat vector as rules compute with it.

Floating-point parameters are steered: they form the (d,) vector. All other arrays (integer buffers,
batch-norm statistics, layers outside the chosen subset) are averaged over the fresh clients
(`buffers`). Nothing that is not finite becomes a part of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.flower.buffers import Buffers, Named, fault_of, limits
from fedsteer.steering.kernels.difference import Difference
from fedsteer.steering.state import Arrays, below


def to_named(record: ArrayRecord) -> Arrays:
    """Flower's arrays as NumPy's, read-only: they share the record's memory."""
    return {name: _view(array) for name, array in record.items()}


def _view(array: Array) -> NDArray[Any]:
    """What `array.numpy()` copies. Its bytes are a file of NumPy's."""
    file = BytesIO(array.data)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        return array.numpy()
    shape, transposed, dtype = np.lib.format.read_array_header_1_0(file)
    values = np.frombuffer(array.data, dtype, offset=file.tell())
    return values.reshape(shape, order="F" if transposed else "C")


def to_record(named: Named) -> ArrayRecord:
    """NumPy's arrays as Flower's; scalars stay scalars."""
    return ArrayRecord({name: Array(np.asarray(a, order="C")) for name, a in named.items()})


@dataclass(frozen=True)
class Piece:
    """One named array."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    place: slice | None  # in the flat vector; None: not steered


class Layout:
    """Order, shapes and dtypes of a model's arrays, and which of them are steered.

    `steer` and `buffers` are name patterns; an array that matches `buffers` is not steered. Only
    floating-point arrays are steered.
    """

    def __init__(self, arrays: Named, steer: Sequence[str], buffers: Sequence[str]) -> None:
        self.pieces: list[Piece] = []
        self.dim = 0
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise ConfigurationError(f"array {name!r} has type {array.dtype}: not a number")
            steered = (
                array.dtype.kind == "f"
                and any(fnmatchcase(name, pattern) for pattern in steer)
                and not any(fnmatchcase(name, pattern) for pattern in buffers)
            )
            place = slice(self.dim, self.dim + array.size) if steered else None
            self.dim += array.size if steered else 0
            piece = Piece(name=name, shape=array.shape, dtype=array.dtype.str, place=place)
            self.pieces.append(piece)
        if not self.dim:
            raise ConfigurationError(f"no floating-point array matches steer={list(steer)}")

    @property
    def steered(self) -> list[str]:
        """Names of the steered arrays."""
        return [piece.name for piece in self._steered]

    def flatten(self, arrays: Named) -> NDArray[Any]:
        """The (d,) vector of the steered arrays: float64 if any of the model's is, else float32."""
        wide = any(piece.dtype.endswith("f8") for piece in self._steered)
        with np.errstate(over="ignore"):  # the rule checks that it is finite
            return np.concatenate(
                self._parts(arrays),
                dtype=np.float64 if wide else np.float32,
                casting="same_kind",
            )

    def difference(self, sent: NDArray[Any], arrays: Named) -> Difference:
        """The flat vector that was `sent` minus that of these arrays."""
        return Difference(sent, self._parts(arrays))

    @property
    def _steered(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.place is not None]

    def _parts(self, arrays: Named) -> list[NDArray[Any]]:
        return [arrays[piece.name].reshape(-1) for piece in self._steered]

    def rest(self, arrays: Named) -> Arrays:
        return {piece.name: arrays[piece.name] for piece in self.pieces if piece.place is None}

    def unflatten(self, flat: NDArray[Any], rest: Named) -> Arrays:
        """Named arrays of the original shapes and dtypes; they may share memory with these."""
        named = {}
        for piece in self.pieces:
            array = rest[piece.name] if piece.place is None else flat[piece.place]
            named[piece.name] = array.astype(piece.dtype, copy=False).reshape(piece.shape)
        return named

    def check(self, arrays: Named) -> None:
        """Raise `DataError` if arrays from outside do not fit."""
        names = {piece.name for piece in self.pieces}
        if missing := sorted(names - set(arrays)):
            raise DataError(f"lacks the array {missing[0]!r}")
        if extra := sorted(set(arrays) - names):
            raise DataError(f"has an extra array {extra[0]!r}")
        for piece in self.pieces:
            array = arrays[piece.name]
            if array.shape != piece.shape:
                raise DataError(f"{piece.name!r} has shape {array.shape}, not {piece.shape}")
            if array.dtype.kind not in ("f" if piece.place is not None else "fiub"):
                raise DataError(f"{piece.name!r} has type {array.dtype}, not {piece.dtype}")
            if piece.place is not None:
                continue  # the rule checks them, and reads them anyway
            if fault := fault_of(piece.name, array, np.dtype(piece.dtype)):
                raise DataError(f"{piece.name!r} {fault}")

    def holds(self, flat: NDArray[Any]) -> bool:
        """Whether all numbers of a (d,) vector are finite in the types they will be sent in."""
        for piece in self.pieces:
            if piece.place is not None:
                part, (low, high) = flat[piece.place], limits(np.dtype(piece.dtype))
                if not (low <= part.min(initial=0) and part.max(initial=0) <= high):  # nan is not
                    return False
        return True


class GlobalModel:
    """A wide master copy of the steered parameters, and all other arrays beside it.

    float16 parameters are kept in float32, so that rounding does not swallow small steps. Clients
    receive the model's own precision, and updates are measured from what they received.
    """

    def __init__(self, record: ArrayRecord, steer: Sequence[str], buffers: Sequence[str]) -> None:
        named = to_named(record)
        self.layout = Layout(named, steer, buffers)
        self.vector: NDArray[Any] = self.layout.flatten(named)  # (d,)
        self.buffers = Buffers(self.layout.rest(named))
        self._refuse_not_finite("the initial arrays")
        self._initial = self.vector, self.rest
        self._last_record = dict(record)

    @property
    def rest(self) -> Arrays:
        """The arrays that are not steered."""
        return self.buffers.arrays

    def _refuse_not_finite(self, what: str) -> None:
        rest = {name: np.isfinite(array).all() for name, array in self.rest.items()}
        if not (self.layout.holds(self.vector) and all(rest.values())):
            names = [name for name, finite in rest.items() if not finite] or ["those to steer"]
            raise ConfigurationError(f"{what} hold numbers that are not finite, in {names[0]!r}")

    def take(self, record: ArrayRecord) -> None:
        """Adopt arrays that other code changed since `record()`, for example by adding noise."""
        if dict(record) != self._last_record:
            named = to_named(record)
            self.layout.check(named)
            self.vector, self.buffers.arrays = self.layout.flatten(named), self.layout.rest(named)
            self._refuse_not_finite("the arrays of this round")
            self._last_record = dict(record)

    def record(self) -> ArrayRecord:
        """The model in its own precision."""
        record = self.record_of(self.vector)
        self._last_record = dict(record)
        return record

    def record_of(self, vector: NDArray[Any]) -> ArrayRecord:
        """A model with these steered parameters and today's other arrays."""
        return to_record(self.layout.unflatten(vector, self.rest))

    def restart(self) -> None:
        """Go back to the model that the run began with."""
        self.vector, self.buffers.arrays = self._initial

    def describe(self) -> list[list[Any]]:
        """Names, shapes, and what is steered, as JSON."""
        return [
            [piece.name, list(piece.shape), piece.place is not None] for piece in self.layout.pieces
        ]

    def pack(self) -> Arrays:
        first, first_rest = self._initial
        arrays = {"model": self.vector, "initial": first}
        arrays |= {f"rest/{name}": array for name, array in self.rest.items()}
        arrays |= {f"initial-rest/{name}": array for name, array in first_rest.items()}
        return arrays | self.buffers.pack()

    def restore(self, arrays: Arrays) -> None:
        self.vector, self.buffers.arrays = arrays["model"], below("rest/", arrays)
        self.buffers.restore(arrays)
        first, _ = self._initial  # as it was given, if it was lost
        self._initial = arrays.get("initial", first), below("initial-rest/", arrays)
