"""Recorded availability: when each client was available, in seconds, repeated without end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsteer import draws
from fedsteer.errors import ConfigurationError, DataError
from fedsteer.options import check_number
from fedsteer.participation.base import ClientNumbers, Probabilities

Times = NDArray[np.float64]
Intervals = Times | Sequence[tuple[float, float]]
"""Pairs of start and end."""

NEVER: Times = np.empty((0, 2))
SHORTEST, LONGEST = 1e-6, 1e12  # seconds: whole microseconds, and as many as fit into 64 bits


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
        check_number("round_seconds", round_seconds, low=SHORTEST, high=LONGEST)
        check_number("stay_seconds", stay_seconds, low=0, high=LONGEST)
        self.round_seconds, self.stay_seconds = round_seconds, stay_seconds
        self.intervals = tuple(_checked(own, client) for client, own in enumerate(intervals))
        if not any(len(own) for own in self.intervals):
            raise DataError("the trace has no client that is ever available")
        last = np.array([own[-1, 1] if len(own) else 0.0 for own in self.intervals])
        repeats = np.asarray(last.max() if lengths is None else lengths, dtype=np.float64)
        if not ((repeats >= SHORTEST) & (repeats <= LONGEST)).all():
            raise ConfigurationError(f"lengths must be in {SHORTEST:g}..{LONGEST:g}")
        self.lengths = np.broadcast_to(repeats, last.shape)
        if (last > self.lengths).any():
            client = int((last > self.lengths).argmax())
            length = self.lengths[client]
            raise DataError(f"client {client}: an interval ends after {length:g} seconds")
        # Whole microseconds: seconds like 0.1 are in no float, and would drift past interval ends.
        self._round, self._lengths = _microseconds(round_seconds), _microseconds(self.lengths)
        self._owners = np.repeat(np.arange(self.clients), [len(own) for own in self.intervals])
        self._first, self._last = _microseconds(np.concatenate(self.intervals)).T
        if stay_seconds:  # t + stay <= end
            self._last = self._last - _microseconds(stay_seconds) + 1

    @property
    def clients(self) -> int:
        return len(self.intervals)

    @property
    def probabilities(self) -> Probabilities:
        """The share of rounds each client takes part in; 0 for one that never does.

        Within a record, rounds start equally often at every multiple of gcd(round, record). For
        long rounds this is not the share of time.
        """
        steps = np.gcd(self._round, self._lengths)
        own = steps[self._owners]
        first, last = -(-self._first // own), -(-self._last // own)  # rounded up
        hits = np.bincount(self._owners, np.maximum(last - first, 0), minlength=self.clients)
        return hits * steps / self._lengths

    def present(self, round: int) -> ClientNumbers:
        """The clients available when this round starts."""
        check_number("round", round, whole=True, low=0)
        seconds = int(round) * int(self._round)  # of any size
        now = (seconds % self._lengths.astype(object)).astype(np.int64)[self._owners]
        return np.unique(self._owners[(self._first <= now) & (now < self._last)])

    def sample(self, clients: int, seed: int) -> Trace:
        """A trace of `clients` of the recorded devices, drawn without replacement."""
        check_number("seed", seed, whole=True, low=0)
        if not 1 <= clients <= self.clients:
            raise ConfigurationError(
                f"{clients} clients cannot be drawn from a trace of {self.clients}"
            )
        chosen = draws.generator(seed, "participation trace").choice(
            self.clients, clients, replace=False
        )
        own = [self.intervals[device] for device in chosen]
        return Trace(own, self.round_seconds, self.lengths[chosen], self.stay_seconds)


def _microseconds(seconds: float | Times) -> NDArray[np.int64]:
    return np.rint(np.asarray(seconds) * 1e6).astype(np.int64)


def _checked(intervals: Intervals, client: int) -> Times:
    if not len(intervals):
        return NEVER
    array = np.array(intervals, dtype=np.float64).reshape(-1, 2)
    array = array[np.argsort(array[:, 0], kind="stable")]
    starts, ends = array[:, 0], array[:, 1]
    if not ((array >= 0) & (array <= LONGEST)).all():
        raise DataError(f"client {client}: times must be in 0..{LONGEST:g}")
    if (starts >= ends).any():
        raise DataError(f"client {client}: an interval must end after it starts")
    if (starts[1:] < ends[:-1]).any():
        raise DataError(f"client {client}: intervals overlap")
    touching = np.flatnonzero(starts[1:] == ends[:-1])
    return np.column_stack([np.delete(starts, touching + 1), np.delete(ends, touching)])
