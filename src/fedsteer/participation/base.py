"""What a participation process is, and the checks they share."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsteer.errors import ConfigurationError

ClientNumbers = NDArray[np.int64]
Probabilities = NDArray[np.float64]

# Rules divide by probabilities, so none that is made up here may be zero.
SMALLEST_PROBABILITY = 1e-6


class Participation(Protocol):
    """Who is there each round.

    `present` is a function of the round alone, in whatever order it is asked: a run that resumes at
    round 57 sees the clients it would have seen, and so does every rule it is compared with.
    """

    @property
    def clients(self) -> int:
        """The number of clients, N."""
        ...

    @property
    def probabilities(self) -> Probabilities | None:
        """The share of rounds each client takes part in over a long run (N,), if known."""
        ...

    def present(self, round: int) -> ClientNumbers:
        """The clients present in a round, in rising order."""
        ...


def checked_probabilities(values: ArrayLike) -> Probabilities:
    """A read-only (N,) array of probabilities in (0, 1]."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError("probabilities must be numbers, one per client") from error
    if array.ndim != 1 or array.size == 0:
        raise ConfigurationError("probabilities must be numbers, one per client")
    bad = np.flatnonzero(~((array > 0) & (array <= 1)))
    if bad.size:
        raise ConfigurationError(
            f"probabilities must lie in (0, 1], client {bad[0]} has {array[bad[0]]}"
        )
    array.setflags(write=False)
    return array


def checked_seed(seed: int) -> None:
    """Seeds are whole numbers from 0."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigurationError(f"seed must be a whole number from 0, got {seed!r}")


def checked_clients(clients: int) -> None:
    """There is at least one client."""
    if not isinstance(clients, int | np.integer) or clients < 1:
        raise ConfigurationError(f"clients must be a whole number from 1, got {clients!r}")


def checked_round(round: int) -> None:
    """Rounds are whole numbers from 0."""
    if not isinstance(round, int | np.integer) or round < 0:
        raise ConfigurationError(f"a round is a whole number from 0, got {round!r}")
