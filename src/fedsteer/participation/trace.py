"""Recorded availability: when each client was available, in seconds, repeated forever."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsteer import draws
from fedsteer.errors import ConfigurationError, DataError
from fedsteer.participation.base import ClientNumbers, Probabilities, check_whole

Times = NDArray[np.float64]
EXACT = 1 << 31  # products of two numbers below it fit into 64 bits


@dataclass(frozen=True, eq=False)
class Trace:
    """Client i is available in each interval [start, end) of `intervals[i]`, a (k, 2) array.

    Round t starts at second t * round_seconds. A client takes part in it if it is available at
    that instant and for `stay_seconds` more. A client's record repeats after `lengths` seconds:
    one value, or one per client; the last end of all clients by default. Intervals that touch
    are joined, but not across the end of a record.
    """

    intervals: tuple[Times, ...]
    round_seconds: float
    lengths: float | Times | None = None
    stay_seconds: float = 0.0
    _lengths: Times = field(init=False, repr=False)  # (N,)
    _starts: Times = field(init=False, repr=False)  # all intervals, one client after the other
    _ends: Times = field(init=False, repr=False)
    _owners: ClientNumbers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.round_seconds < math.inf:
            raise ConfigurationError(f"round_seconds must be positive, got {self.round_seconds}")
        if not 0 <= self.stay_seconds < math.inf:
            raise ConfigurationError(f"stay_seconds must be 0 or more, got {self.stay_seconds}")
        intervals = tuple(_checked(own, client) for client, own in enumerate(self.intervals))
        if not any(len(own) for own in intervals):
            raise DataError("the trace has no client that is ever available")
        every = np.concatenate(intervals)
        lengths = _checked_lengths(self.lengths, every[:, 1].max(), len(intervals))
        owners = np.repeat(np.arange(len(intervals)), [len(own) for own in intervals])
        beyond = every[:, 1] > lengths[owners]
        if beyond.any():
            client = owners[beyond.argmax()]
            raise DataError(f"client {client}: an interval ends after {lengths[client]:g} seconds")
        for name, value in (
            ("intervals", intervals),
            ("_lengths", lengths),
            ("_starts", every[:, 0]),
            ("_ends", every[:, 1]),
            ("_owners", owners),
        ):
            object.__setattr__(self, name, value)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.intervals)

    @property
    def probabilities(self) -> Probabilities:
        """The share of rounds each client takes part in; 0 for one that never does.

        Rounds start at each of the b instants of a record equally often (see `_Grid`), so counting
        the instants inside the intervals is enough. For long rounds this is not the share of time.
        """
        grid = self._grid
        hits = np.maximum(grid.last - grid.first, 0.0)
        counts = np.bincount(self._owners, weights=hits, minlength=self.clients)
        return np.clip(counts / grid.instants, 0.0, 1.0)

    def present(self, round: int) -> ClientNumbers:
        """The clients available when this round starts."""
        check_whole("round", round)
        now = self._grid.instant(round)[self._owners]
        return np.unique(self._owners[(self._grid.first <= now) & (now < self._grid.last)])

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
        return replace(
            self,
            intervals=tuple(self.intervals[device] for device in chosen),
            lengths=self._lengths[chosen],
        )

    @cached_property
    def _grid(self) -> _Grid:
        ratios = [_ratio(self.round_seconds, length) for length in self._lengths.tolist()]
        try:
            instants = np.array([ratio.denominator for ratio in ratios], np.float64)
        except OverflowError:
            raise ConfigurationError(
                f"rounds of {self.round_seconds:g} seconds are too short for this trace"
            ) from None
        strides = np.array([ratio.numerator % ratio.denominator for ratio in ratios], np.float64)
        step = (self._lengths / instants)[self._owners]
        first = np.ceil(_whole(self._starts / step))
        last = np.ceil(_whole(self._ends / step))  # t < end
        if self.stay_seconds:  # and t + stay <= end
            last = np.floor(_whole((self._ends - self.stay_seconds) / step)) + 1
        return _Grid(instants=instants, strides=strides, first=first, last=last)


@dataclass(frozen=True)
class _Grid:
    """Modulo a record's length L, rounds start at multiples of L / b, called instants.

    With a / b = round_seconds / L in lowest terms, round t starts at instant t a mod b. Counting
    instants keeps seconds like 0.1, which no float holds, from drifting past interval ends.
    """

    instants: Times  # (N,) b
    strides: Times  # (N,) a mod b
    first: Times  # the first instant of each interval
    last: Times  # the instant after its last

    def instant(self, round: int) -> Times:
        """The instant at which this round starts, (N,)."""
        if self.instants.max() < EXACT:
            whole = self.instants.astype(np.int64)
            return (round % whole * self.strides.astype(np.int64) % whole).astype(np.float64)
        return np.fmod(round * self.strides, self.instants)


@cache
def _ratio(seconds: float, length: float) -> Fraction:
    """The ratio of the decimal numbers as written: 0.1 is a tenth, though no float is."""
    return Fraction(repr(float(seconds))) / Fraction(repr(float(length)))


def _whole(places: Times) -> Times:
    """Whole numbers freed of the rounding error of a division."""
    near = np.rint(places)
    return np.where(np.abs(places - near) <= 1e-12 * np.maximum(near, 1.0), near, places)


def _checked(intervals: ArrayLike, client: int) -> Times:
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


def _checked_lengths(lengths: float | Times | None, last: float, n: int) -> Times:
    array = np.asarray(last if lengths is None else lengths, dtype=np.float64)
    if array.shape not in ((), (n,)):
        raise ConfigurationError("lengths must be one number, or one per client")
    if not (np.isfinite(array) & (array > 0)).all():
        raise ConfigurationError("lengths must be positive")
    return np.broadcast_to(array, (n,))
