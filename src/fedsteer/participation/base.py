"""What a participation process is, and what all of them share: options and checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsteer import draws
from fedsteer.errors import ConfigurationError
from fedsteer.options import check_number, check_options, option

ClientNumbers = NDArray[np.int64]
Probabilities = NDArray[np.float64]

# Rules divide by probabilities, so none that is made up here may be zero.
SMALLEST_PROBABILITY = 1e-6

MOST_NOISE = 100  # exp(MOST_NOISE * z) is still a number for a normal draw z
IF_WRONG = {"reported": ("wrong",)}
IN_GROUPS = {"probabilities": (None,)}


class Participation(Protocol):
    """Which clients take part in each round.

    `present` depends on the round alone, not on earlier calls: a run that resumes at round 57 sees
    the clients it would have seen, and so does every rule it is compared with. Rounds of a run
    begin at 1; 0 is a round, too. Probabilities must not be 0: rules divide by them.
    """

    @property
    def clients(self) -> int:
        """The number of clients, N."""

    @property
    def probabilities(self) -> Probabilities | None:
        """The long-run share of rounds each client takes part in, (N,), if known."""

    def present(self, round: int) -> ClientNumbers:
        """The clients present in a round, in rising order, as an array of the caller's own."""


@dataclass(frozen=True)
class ParticipationOptions(ABC):
    """The section [participation] of an experiment; every kind adds settings of its own."""

    kind: ClassVar[str]

    reported: str = option(
        "known",
        "what rules are told of p: known, estimated, or wrong",
        choices=("known", "estimated", "wrong"),
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

    def files(self) -> dict[str, str]:
        """The files that the draws depend on, by setting."""
        return {}

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
        """The share of rounds each client takes part in, (N,).

        In groups, round(share * clients) clients have probability `weak`. Which ones is drawn from
        the seed for this purpose alone, independently of the group a client's data puts it in.
        """
        if self.probabilities is None:
            values = np.full(clients, self.powerful)
            order = draws.generator(seed, "participation groups").permutation(clients)
            values[order[: round(self.share * clients)]] = self.weak
            return values
        if len(self.probabilities) != clients:
            raise ConfigurationError(
                f"participation.probabilities has {len(self.probabilities)} entries "
                f"for {clients} clients"
            )
        return checked_probabilities(self.probabilities)


class DrawnProcess(ABC):
    """A process that starts from long-run probabilities and draws once per client and round."""

    def __init__(self, probabilities: ArrayLike, seed: int = 0) -> None:
        check_number("seed", seed, whole=True, low=0)
        self.base = checked_probabilities(probabilities)
        self.seed = seed

    @property
    def clients(self) -> int:
        return len(self.base)

    @property
    def probabilities(self) -> Probabilities:
        return self.base

    def present(self, round: int) -> ClientNumbers:
        check_number("round", round, whole=True, low=0)
        return np.flatnonzero(self.on(round))

    @abstractmethod
    def on(self, round: int) -> NDArray[np.bool_]:
        """Whether each client is present in a round, (N,)."""

    def chance(self, round: int) -> Probabilities:
        """The draw of each client for a round, uniform in [0, 1), (N,)."""
        return draws.generator(self.seed, "participation", round=round).random(self.clients)


def checked_probabilities(values: ArrayLike) -> Probabilities:
    """A read-only (N,) array of probabilities in (0, 1]."""
    try:
        array = np.array(values, dtype=np.float64)
        if array.ndim != 1 or array.size == 0:
            raise ValueError
    except (TypeError, ValueError) as error:
        raise ConfigurationError("probabilities must be numbers, one per client") from error
    bad = np.flatnonzero(~((array > 0) & (array <= 1)))
    if bad.size:
        raise ConfigurationError(
            f"probabilities must be in (0, 1], client {bad[0]} has {array[bad[0]]}"
        )
    array.setflags(write=False)
    return array
