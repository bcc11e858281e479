"""What a participation process is, and what all of them share: options and checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsteer import draws
from fedsteer.errors import ConfigurationError
from fedsteer.options import check_options, option

ClientNumbers = NDArray[np.int64]
Probabilities = NDArray[np.float64]

# Rules divide by probabilities, so none that is made up here may be zero.
SMALLEST_PROBABILITY = 1e-6

VIEWS = ("known", "estimated", "wrong")
MOST_NOISE = 100  # exp(MOST_NOISE * z) is still a number for a normal draw z
IF_WRONG = {"reported": ("wrong",)}
IN_GROUPS = {"probabilities": (None,)}


class Participation(Protocol):
    """Which clients take part in each round.

    `present` depends on the round alone, not on earlier calls: a run that resumes at round 57 sees
    the clients it would have seen, and so does every rule it is compared with.
    """

    @property
    def clients(self) -> int:
        """The number of clients, N."""
        ...

    @property
    def probabilities(self) -> Probabilities | None:
        """The long-run share of rounds each client takes part in, (N,), if known."""
        ...

    def present(self, round: int) -> ClientNumbers:
        """The clients present in a round, in rising order."""
        ...


@dataclass(frozen=True)
class ParticipationOptions(ABC):
    """The section [participation] of an experiment; every kind adds settings of its own."""

    kind: ClassVar[str]

    reported: str = option(
        "known", "what rules are told of p: known, estimated, or wrong", choices=VIEWS
    )
    wrong_factor: float = option(
        1.0, 'reported = "wrong": p times this ...', above=0, only_if=IF_WRONG
    )
    wrong_noise: float = option(
        0.0, "... times exp(noise), per client", low=0, high=MOST_NOISE, only_if=IF_WRONG
    )

    def __post_init__(self) -> None:
        check_options(self, "participation.")
        if self.reported != "wrong" and (self.wrong_factor != 1 or self.wrong_noise != 0):
            raise ConfigurationError(
                "participation.wrong_factor and wrong_noise need reported = wrong, "
                f"here it is {self.reported}"
            )

    @abstractmethod
    def process(self, clients: int, seed: int) -> Participation:
        """The process these options describe."""

    def told(self, process: Participation, seed: int) -> Probabilities | None:
        """What rules are told of p: the truth, wrong values, or nothing (they estimate it).

        Wrong values are p_i * wrong_factor * exp(wrong_noise * z_i), kept in (0, 1]; z_i is
        standard normal and the same in every round.
        """
        if self.reported == "estimated":
            return None
        truth = process.probabilities
        if truth is None:
            raise ConfigurationError(
                "these probabilities are not known; set participation.reported = estimated"
            )
        if self.reported == "known":
            return truth
        z = draws.generator(seed, "participation view").standard_normal(len(truth))
        wrong = truth * self.wrong_factor * np.exp(self.wrong_noise * z)
        return np.clip(wrong, SMALLEST_PROBABILITY, 1.0)


@dataclass(frozen=True)
class LongRunOptions(ParticipationOptions):
    """Options of the processes that start from long-run probabilities."""

    weak: float = option(0.04, "probability of the weak ...", above=0, high=1, only_if=IN_GROUPS)
    powerful: float = option(
        0.16, "... and of the powerful clients", above=0, high=1, only_if=IN_GROUPS
    )
    share: float = option(0.5, "share of weak clients", low=0, high=1, only_if=IN_GROUPS)
    probabilities: list[float] | None = option(None, "any vector instead of the two groups")

    def long_run(self, clients: int, seed: int) -> Probabilities:
        """The share of rounds each client takes part in, (N,)."""
        if self.probabilities is None:
            return group_probabilities(clients, self.weak, self.powerful, self.share, seed)
        if len(self.probabilities) != clients:
            raise ConfigurationError(
                f"participation.probabilities has {len(self.probabilities)} entries "
                f"for {clients} clients"
            )
        return checked_probabilities(self.probabilities)


def group_probabilities(
    clients: int = 100,
    weak: float = 0.04,
    powerful: float = 0.16,
    share: float = 0.5,
    seed: int = 0,
) -> Probabilities:
    """round(share * clients) clients with probability `weak`, the others with `powerful`.

    Which clients are weak is drawn from the seed for this purpose alone, so it is independent of
    the group a client's data puts it in.
    """
    check_whole("clients", clients, low=1)
    check_whole("seed", seed)
    if not 0 <= share <= 1:
        raise ConfigurationError(f"share must be in [0, 1], got {share}")
    values = np.full(clients, powerful, dtype=np.float64)
    order = draws.generator(seed, "participation groups").permutation(clients)
    values[order[: round(share * clients)]] = weak
    return checked_probabilities(values)


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
            f"probabilities must be in (0, 1], client {bad[0]} has {array[bad[0]]}"
        )
    array.setflags(write=False)
    return array


def check_whole(name: str, value: int, low: int = 0) -> None:
    """Refuse anything but a whole number of at least `low`."""
    if not isinstance(value, int | np.integer) or value < low:
        raise ConfigurationError(f"{name} must be a whole number from {low}, got {value!r}")
