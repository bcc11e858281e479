"""Participation probabilities: known, estimated, or the server's own sampling.

Before a round is computed, a source returns 1/p_i of the active clients (`inverse`); when the round
is committed, it learns who took part (`observe`). No call loops over all clients.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from fedsteer.errors import RoundRefused
from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Flags, Floats, Integers
from fedsteer.steering.table import Table

LEAST_VISITS = 0.5
"""`Shrunk`: the common share counts for at least this many visits."""


class ProbabilitySource(Component, ABC):
    """1/p_i of the active clients. Sources that count no visits implement `inverse` alone."""

    @abstractmethod
    def inverse(self, slots: Integers, number: int, fresh: Flags | None = None) -> Floats:
        """1/p_i in round `number`.

        `fresh` is False if the client was asked, which says nothing about p_i; default all True.
        """

    def drift(self, slots: Integers, number: int, fresh: Flags | None = None) -> float:
        """Factor from the last round's 1/p_i to today's, if all of them change together.

        The arguments are those of `inverse`.
        """
        return 1.0

    def join(self, slots: Integers, number: int) -> None:
        """These clients joined in round `number` and took part in it; 0: before the first round."""

    def observe(self, slots: Integers, number: int) -> float:
        """These clients took part in round `number`; how many it expects next, 0 if unknown."""
        return 0.0

    def forget(self, slots: Integers) -> None:
        """These clients left for good."""

    def restart(self, number: int) -> None:
        """Rounds up to `number` were a warm-up: count from here on."""


@dataclass
class Known(ProbabilitySource):
    """p_i as passed with every round."""

    def inverse(self, slots: Integers, number: int, fresh: Flags | None = None) -> Floats:
        """Called only if the round brought none."""
        if len(slots):
            raise RoundRefused(
                "this rule weighs clients by 1/p: pass probabilities with the round, or estimate "
                'them with probabilities="shrunk"'
            )
        return np.ones(0)


@dataclass
class Sampled(ProbabilitySource):
    """The server samples a fraction of the clients uniformly: p_i is that fraction."""

    fraction: float

    def inverse(self, slots: Integers, number: int, fresh: Flags | None = None) -> Floats:
        return np.full(len(slots), 1.0 / self.fraction)


@dataclass
class MemberSource(ProbabilitySource):
    """A source that counts from the round in which a client became a member."""

    since: Table = field(default_factory=lambda: Table.empty(0, fill=-1.0))  # -1: not a member

    def forget(self, slots: Integers) -> None:
        for table in vars(self).values():
            if isinstance(table, Table):
                table[slots] = table.fill

    def restart(self, number: int) -> None:
        self.since.values[self.since.values >= 0] = number


@dataclass
class Visits(MemberSource):
    """1/p_i = rounds / visits since the client became a member, this round included.

    Consistent for any p_i, while the cap of `Intervals` biases it; noisier in the first rounds.
    """

    visits: Table = field(default_factory=lambda: Table.empty(0))

    def inverse(self, slots: Integers, number: int, fresh: Flags | None = None) -> Floats:
        since = self.since[slots]
        rounds = np.where(since < 0, 1.0, number - since)
        return rounds / (self.visits[slots] + 1.0)

    def join(self, slots: Integers, number: int) -> None:
        self.since[slots] = max(number - 1.0, 0.0)

    def observe(self, slots: Integers, number: int) -> float:
        self.visits.add(slots, 1.0)
        return 0.0

    def restart(self, number: int) -> None:
        super().restart(number)
        self.visits.values[:] = 0.0


@dataclass
class Intervals(MemberSource):
    """1/p_i = mean number of rounds between visits (FedAU, Wang and Ji 2024).

    An interval ends with a visit or after `cap` rounds, and enters the running mean from the next
    round on. The first weight is 1. The cap bounds the weight of a client and biases 1/p_i
    downwards: by a factor of .87 at p = .04 and cap 50, of .18 at p = .004.
    """

    cap: int = 50
    count: Table = field(default_factory=lambda: Table.empty(0))  # intervals ended so far
    mean: Table = field(default_factory=lambda: Table.empty(0, fill=1.0))  # their mean length

    def inverse(self, slots: Integers, number: int, fresh: Flags | None = None) -> Floats:
        return self._advanced(slots, number)[2]

    def join(self, slots: Integers, number: int) -> None:
        self.since[slots] = float(number)

    def observe(self, slots: Integers, number: int) -> float:
        since, count, mean = self._advanced(slots, number)
        ended = number > since  # False for clients that joined in this round
        self.mean[slots] = np.where(ended, (count * mean + number - since) / (count + 1.0), mean)
        self.count[slots] = count + ended
        self.since[slots] = float(number)
        return 0.0

    def _advanced(self, slots: Integers, number: int) -> tuple[Floats, Floats, Floats]:
        """Since, count and mean, with the intervals that the cap ended before this round."""
        since, count = self.since[slots], self.count[slots]
        since = np.where(since < 0, float(number), since)
        capped = np.maximum(number - 1 - since, 0.0) // self.cap
        ended = count + capped
        mean = (count * self.mean[slots] + capped * self.cap) / np.maximum(ended, 1.0)
        return since + capped * self.cap, ended, np.where(ended > 0, mean, 1.0)


@dataclass
class Shrunk(Visits):
    """p_i between a client's own share of rounds and the share of all clients (empirical Bayes).

        p_i = (s q + visits_i) / (s + rounds_i),   q = all visits / all rounds of all members

    s is the number of rounds that q counts for: ten, or as many as half a visit takes, so that no
    client weighs many times 1/q. Only earlier rounds enter a client's own part: p_i does not depend
    on whether the client is here now. A new client weighs 1/q. While few clients have come back, q
    falls from round to round and all 1/p_i grow (`drift`).
    """

    strength: float = 10.0
    members: int = 0
    newcomers: int = 0  # of these, the ones that joined in the current round
    number: int = 0  # the last round that was observed
    all_visits: float = 0.0
    all_rounds: float = 0.0

    def inverse(self, slots: Integers, number: int, fresh: Flags | None = None) -> Floats:
        since = self.since[slots]
        rounds = np.where(since >= 0, np.maximum(number - 1 - since, 0.0), 0.0)
        share = self._share_with(since, number, fresh)
        strength = max(self.strength, LEAST_VISITS / share)
        return (strength + rounds) / (strength * share + self.visits[slots])

    def drift(self, slots: Integers, number: int, fresh: Flags | None = None) -> float:
        last = _share(self.all_visits, self.all_rounds)
        return last / self._share_with(self.since[slots], number, fresh)

    def _share_with(self, since: Floats, number: int, fresh: Flags | None) -> float:
        """q, this round included."""
        came = (since >= 0) & (since < number)
        here = (came if fresh is None else came & fresh).sum()
        old = self.members - self.newcomers
        possible = self.all_rounds + old * max(number - self.number, 0)
        return _share(self.all_visits + float(here), possible)

    def join(self, slots: Integers, number: int) -> None:
        self.since[slots] = float(number)
        self.members += len(slots)
        self.newcomers += len(slots) if number > 0 else 0

    def observe(self, slots: Integers, number: int) -> float:
        # Who joined in this round is not counted: that it came is why it is known.
        counted = slots[self.since[slots] < number] if self.newcomers else slots
        self.visits.add(counted, 1.0)
        self.all_visits += len(counted)
        self.all_rounds += (self.members - self.newcomers) * (number - self.number)
        self.newcomers, self.number = 0, number
        return self.members * _share(self.all_visits, self.all_rounds) if self.all_rounds else 0.0

    def forget(self, slots: Integers) -> None:
        # Their visits stay in q, which would be too small without them.
        self.members -= int((self.since[slots] >= 0).sum())
        super().forget(slots)

    def restart(self, number: int) -> None:
        super().restart(number)
        self.all_visits = self.all_rounds = 0.0
        self.newcomers, self.number = 0, number


def _share(visits: float, rounds: float) -> float:
    """q, from at least one visit: newcomers alone do not tell how rarely clients come back."""
    return min(max(visits, 1.0) / rounds, 1.0) if rounds > 0 else 1.0


def probability_source(choice: str | float, cap: int = 50) -> ProbabilitySource:
    """The source an option names: known, intervals, visits, shrunk, or a sampling fraction."""
    if not isinstance(choice, str):
        return Sampled(float(choice))
    sources: dict[str, ProbabilitySource] = {
        "known": Known(),
        "visits": Visits(),
        "shrunk": Shrunk(),
        "intervals": Intervals(cap=cap),
    }
    return sources[choice]
