"""Between Flower's named arrays and the flat vector that rules compute with.

Floating-point parameters are steered: they form the (d,) vector. Everything else (integer buffers,
batch-norm statistics, layers outside the chosen subset) is averaged over the fresh clients, as
Flower's FedAvg would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.errors import ConfigurationError

STATISTICS = ("*running_mean", "*running_var", "*num_batches_tracked")
"""Names torch gives to batch-norm statistics: floats, but no parameters."""

Named = Mapping[str, NDArray[Any]]


class Malformed(Exception):
    """A reply whose arrays do not fit; the message says how."""


@dataclass(frozen=True)
class Piece:
    """One named array."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int  # in the flat vector; -1: not steered
    size: int


@dataclass(frozen=True)
class Layout:
    """Order, shapes and types of a model's arrays, and which of them are steered."""

    pieces: tuple[Piece, ...]
    dim: int

    @staticmethod
    def of(
        arrays: Named, steer: Sequence[str] = ("*",), buffers: Sequence[str] = STATISTICS
    ) -> Layout:
        """`steer` and `buffers` are name patterns; what matches `buffers` is never steered."""
        pieces, start = [], 0
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise ConfigurationError(f"array {name!r} has type {array.dtype}: not a number")
            steered = (
                array.dtype.kind == "f"
                and any(fnmatchcase(name, pattern) for pattern in steer)
                and not any(fnmatchcase(name, pattern) for pattern in buffers)
            )
            place = start if steered else -1
            pieces.append(Piece(name, array.shape, array.dtype.str, place, array.size))
            start += array.size if steered else 0
        if not start:
            raise ConfigurationError(f"no floating-point array matches steer={list(steer)}")
        return Layout(tuple(pieces), start)

    def flatten(self, arrays: Named) -> NDArray[Any]:
        """The (d,) vector of the steered arrays; float64 if any is, else float32."""
        wide = any(piece.dtype.endswith("f8") for piece in self.pieces if piece.start >= 0)
        flat = np.empty(self.dim, np.float64 if wide else np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # not finite: the rule will say so
            for piece in self.pieces:
                if piece.start >= 0:
                    flat[piece.start : piece.start + piece.size] = arrays[piece.name].reshape(-1)
        return flat

    def check(self, arrays: Named) -> None:
        """Raise `Malformed` where arrays from outside do not fit."""
        names = {piece.name for piece in self.pieces}
        if missing := sorted(names - set(arrays)):
            raise Malformed(f"lacks the array {missing[0]!r}")
        if extra := sorted(set(arrays) - names):
            raise Malformed(f"has an extra array {extra[0]!r}")
        for piece in self.pieces:
            array = arrays[piece.name]
            if array.shape != piece.shape:
                raise Malformed(f"{piece.name!r} has shape {array.shape}, not {piece.shape}")
            if array.dtype.kind not in "fiub":
                raise Malformed(f"{piece.name!r} has type {array.dtype}")
            # Steered arrays are checked by the rule, which reads them anyway.
            if piece.start < 0 and not np.isfinite(array).all():
                raise Malformed(f"{piece.name!r} is not finite")

    def rest(self, arrays: Named) -> dict[str, NDArray[Any]]:
        """The arrays that are not steered."""
        return {piece.name: arrays[piece.name] for piece in self.pieces if piece.start < 0}

    def unflatten(self, flat: NDArray[Any], rest: Named) -> dict[str, NDArray[Any]]:
        """Named arrays of the original shapes and types."""
        named = {}
        for piece in self.pieces:
            if piece.start < 0:
                named[piece.name] = rest[piece.name].astype(piece.dtype).reshape(piece.shape)
            else:
                part = flat[piece.start : piece.start + piece.size]
                named[piece.name] = part.reshape(piece.shape).astype(piece.dtype)
        return named


def averaged(rests: Sequence[Named], sizes: Sequence[float], old: Named) -> dict[str, NDArray[Any]]:
    """The unsteered arrays, averaged over fresh clients by their data; the old ones if none."""
    if not rests:
        return dict(old)
    shares = np.asarray(sizes, np.float64) / np.sum(sizes)
    result = {}
    for name, before in old.items():
        if all(np.array_equal(rest[name], before) for rest in rests):
            result[name] = before  # a mean in float64 could not hold every whole number
            continue
        mean = sum(
            share * rest[name].astype(np.float64) for share, rest in zip(shares, rests, strict=True)
        )
        whole = before.dtype.kind in "iub"
        result[name] = (np.rint(mean) if whole else np.asarray(mean)).astype(before.dtype)
    return result
