"""Recorded availability: when each client was available, in seconds, repeated forever."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedsteer import draws
from fedsteer.errors import ConfigurationError, DataError
from fedsteer.participation.base import ClientNumbers, Probabilities, check_whole

Times = NDArray[np.float64]
Intervals = Times | Sequence[tuple[float, float]]
"""Pairs of start and end."""


class Trace:
    """Client i is available in each interval [start, end) of `intervals[i]`, a (k, 2) array.

    Round t starts at second t * round_seconds. A client takes part in it if it is available at
    that instant and for `stay_seconds` more. A client's record repeats after `lengths` seconds:
    one value, or one per client; the last end of all clients by default. Intervals that touch
    are joined, but not across the end of a record.
    """

    def __init__(
        self,
        intervals: Sequence[Intervals],
        round_seconds: float,
        lengths: float | Times | None = None,
        stay_seconds: float = 0.0,
    ) -> None:
        if not 0 < round_seconds < math.inf:
            raise ConfigurationError(f"round_seconds must be positive, got {round_seconds}")
        if not 0 <= stay_seconds < math.inf:
            raise ConfigurationError(f"stay_seconds must be 0 or more, got {stay_seconds}")
        self.round_seconds, self.stay_seconds = round_seconds, stay_seconds
        self.intervals = tuple(_checked(own, client) for client, own in enumerate(intervals))
        if not any(len(own) for own in self.intervals):
            raise DataError("the trace has no client that is ever available")
        last = np.array([own[-1, 1] if len(own) else 0.0 for own in self.intervals])
        given = np.asarray(last.max() if lengths is None else lengths, dtype=np.float64)
        if given.shape not in ((), last.shape):
            raise ConfigurationError("lengths must be one number, or one per client")
        if not (np.isfinite(given) & (given > 0)).all():
            raise ConfigurationError("lengths must be positive")
        self.lengths = np.broadcast_to(given, last.shape)
        if (last > self.lengths).any():
            client = int((last > self.lengths).argmax())
            length = self.lengths[client]
            raise DataError(f"client {client}: an interval ends after {length:g} seconds")

    @property
    def clients(self) -> int:
        return len(self.intervals)

    @property
    def probabilities(self) -> Probabilities:
        """The share of rounds each client takes part in; 0 for one that never does.

        Rounds start at each of the b instants of a record equally often (see `_Grid`), so counting
        the instants inside the intervals is enough. For long rounds this is not the share of time.
        """
        grid = self._grid
        hits = np.maximum(grid.last - grid.first, 0.0)
        counts = np.bincount(grid.owners, weights=hits, minlength=self.clients)
        return np.clip(counts / grid.instants.astype(np.float64), 0.0, 1.0)

    def present(self, round: int) -> ClientNumbers:
        """The clients available when this round starts."""
        check_whole("round", round)
        grid = self._grid
        now = (int(round) * grid.strides % grid.instants).astype(np.float64)[grid.owners]
        return np.unique(grid.owners[(grid.first <= now) & (now < grid.last)])

    def sample(self, clients: int, seed: int) -> Trace:
        """A trace of `clients` of the recorded devices, drawn without replacement."""
        check_whole("seed", seed)
        if not 1 <= clients <= self.clients:
            raise ConfigurationError(
                f"{clients} clients cannot be drawn from a trace of {self.clients}"
            )
        chosen = draws.generator(seed, "participation trace").choice(
            self.clients, clients, replace=False
        )
        own = [self.intervals[device] for device in chosen]
        return Trace(own, self.round_seconds, self.lengths[chosen], self.stay_seconds)

    @cached_property
    def _grid(self) -> _Grid:
        # The decimal numbers as written: 0.1 is a tenth, though no float is.
        seconds = Fraction(repr(float(self.round_seconds)))
        ratios = [seconds / Fraction(repr(length)) for length in self.lengths.tolist()]
        instants = np.array([ratio.denominator for ratio in ratios], object)
        try:
            step = self.lengths / instants.astype(np.float64)
        except OverflowError:
            raise ConfigurationError(
                f"rounds of {self.round_seconds:g} seconds are too short for this trace"
            ) from None
        owners = np.repeat(np.arange(self.clients), [len(own) for own in self.intervals])
        ends = np.concatenate(self.intervals) - [0.0, self.stay_seconds]
        places = ends / step[owners, np.newaxis]
        near = np.rint(places)  # without the rounding error of the division
        exact = np.abs(places - near) <= 1e-12 * np.maximum(near, 1.0)
        places = np.where(exact, near, places)
        first, last = np.ceil(places).T  # t < end
        if self.stay_seconds:  # t + stay <= end
            last = np.floor(places[:, 1]) + 1
        strides = np.array([ratio.numerator for ratio in ratios], object)
        return _Grid(owners=owners, first=first, last=last, instants=instants, strides=strides)


@dataclass(frozen=True)
class _Grid:
    """Modulo a record's length L, rounds start at multiples of L / b, called instants.

    With a / b = round_seconds / L in lowest terms, round t starts at instant t a mod b. Counting
    instants keeps seconds like 0.1, which no float holds, from drifting past interval ends.
    """

    owners: ClientNumbers  # of all intervals, one client after the other
    first: Times  # the first instant of each interval
    last: Times  # the instant after its last
    instants: NDArray[np.object_]  # (N,) b, whole numbers of any size
    strides: NDArray[np.object_]  # (N,) a


def _checked(intervals: Intervals, client: int) -> Times:
    try:
        array = np.array(intervals, dtype=np.float64).reshape(-1, 2)
    except (TypeError, ValueError) as error:
        raise DataError(f"client {client}: intervals must be pairs of start and end") from error
    array = array[np.argsort(array[:, 0], kind="stable")]
    starts, ends = array[:, 0], array[:, 1]
    if not np.isfinite(array).all() or (starts < 0).any():
        raise DataError(f"client {client}: times must be finite and not negative")
    if (starts >= ends).any():
        raise DataError(f"client {client}: an interval must end after it starts")
    if (starts[1:] < ends[:-1]).any():
        raise DataError(f"client {client}: intervals overlap")
    touching = np.flatnonzero(starts[1:] == ends[:-1])
    return np.column_stack([np.delete(starts, touching + 1), np.delete(ends, touching)])
