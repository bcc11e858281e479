"""The global model as Flower sends it and as rules compute with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedsteer.flower.layout import Layout
from fedsteer.flower.payload import to_named, to_record
from fedsteer.steering.state import Arrays

Pair = tuple[NDArray[Any], dict[str, NDArray[Any]]]


class GlobalModel:
    """A wide master copy of the steered parameters, and all other arrays beside it.

    float16 parameters are kept in float32, so that small steps are not lost to rounding; what
    clients are sent, and what updates are taken from, has the model's own precision.
    """

    def __init__(self, record: ArrayRecord, steer: Sequence[str], buffers: Sequence[str]) -> None:
        named = to_named(record)
        self.layout = Layout.of(named, steer, buffers)
        self.vector: NDArray[Any] = self.layout.flatten(named)  # (d,)
        self.rest = self.layout.rest(named)
        self.initial: Pair = self.vector, self.rest
        self._handed_out = dict(record)

    def take(self, record: ArrayRecord) -> None:
        """Where somebody changed what we handed out (added noise, say), that is the model now."""
        arrays = dict(record)
        same = arrays.keys() == self._handed_out.keys()
        if not same or any(arrays[name] is not self._handed_out[name] for name in arrays):
            named = to_named(record)
            self.layout.check(named)
            self.vector, self.rest = self.layout.flatten(named), self.layout.rest(named)
            self._handed_out = arrays

    def record(self) -> ArrayRecord:
        """The model in its own precision."""
        record = to_record(self.layout.unflatten(self.vector, self.rest))
        self._handed_out = dict(record)
        return record

    def flat(self, record: ArrayRecord) -> NDArray[Any]:
        """(d,) the steered part of a record with this model's arrays."""
        return self.layout.flatten(to_named(record))

    def restart(self) -> None:
        """Back to where the run began."""
        self.vector, self.rest = self.initial

    def describe(self) -> list[list[Any]]:
        """Names, shapes, and what is steered."""
        return [[piece.name, list(piece.shape), piece.start >= 0] for piece in self.layout.pieces]

    def pack(self) -> Arrays:
        """Named arrays for the checkpoint."""
        arrays = {"model": self.vector, "initial": self.initial[0]}
        arrays |= {f"rest/{name}": array for name, array in self.rest.items()}
        return arrays | {f"initial-rest/{name}": array for name, array in self.initial[1].items()}

    def restore(self, arrays: Arrays) -> None:
        """The inverse of `pack`."""
        self.vector, self.rest = arrays["model"], _under("rest/", arrays)
        self.initial = arrays["initial"], _under("initial-rest/", arrays)


def _under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
