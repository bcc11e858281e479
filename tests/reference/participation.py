"""Estimates of 1/p_i for clients whose participation probability is unknown.

Both keep the list of who was there in each round and recount from round 1 at every question.
Rounds are numbered from 1; a number that was skipped is an empty round.
"""

from collections.abc import Sequence

from tests.reference.population import Client


class NaiveIntervals:
    """FedAU: the mean of the intervals between visits, closed population.

    S_i = M_i = 0, w_i = 1 at first; before each round t >= 2, for every client:
        S_i <- S_i + 1
        if i was there in round t - 1, or S_i = cap:
            w_i <- S_i if M_i = 0 else (M_i w_i + S_i) / (M_i + 1)
            M_i <- M_i + 1,  S_i <- 0
    1/p_i in round t is w_i.
    """

    def __init__(self, cap: int = 50) -> None:
        self.cap = cap
        self.visits: dict[int, set[Client]] = {}

    def step(self, number: int, clients: Sequence[Client]) -> list[float]:
        """1/p_i of the active clients of this round."""
        self.visits[number] = set(clients)
        return [self.inverse(client, number) for client in clients]

    def inverse(self, client: Client, number: int) -> float:
        """1/p_i in round `number`."""
        estimate = 1.0
        intervals = 0
        since = 0
        for round_number in range(2, number + 1):
            since += 1
            if client in self.visits.get(round_number - 1, set()) or since == self.cap:
                if intervals == 0:
                    estimate = float(since)
                else:
                    estimate = (intervals * estimate + since) / (intervals + 1)
                intervals += 1
                since = 0
        return estimate


class NaiveVisits:
    """1/p_i in round t is t / (number of visits of i in rounds 1..t, this one included)."""

    def __init__(self) -> None:
        self.visits: dict[int, set[Client]] = {}

    def step(self, number: int, clients: Sequence[Client]) -> list[float]:
        """1/p_i of the active clients of this round."""
        self.visits[number] = set(clients)
        inverses = []
        for client in clients:
            count = 0
            for round_number in range(1, number + 1):
                if client in self.visits.get(round_number, set()):
                    count += 1
            inverses.append(number / count)
        return inverses


class NaiveShrunk:
    """p_i in round t: (s q + visits of i before t) / (s + t - 1) for a fixed set of members.

    q: all visits of rounds 1..t over t times the number of members. s: ten rounds, or those that
    half a visit takes at q.
    """

    def __init__(self, members: int, strength: float = 10.0) -> None:
        self.members, self.strength = members, strength
        self.visits: dict[int, set[Client]] = {}

    def step(self, number: int, clients: Sequence[Client]) -> list[float]:
        """1/p_i of the active clients of this round."""
        self.visits[number] = set(clients)
        everybody = sum(len(there) for there in self.visits.values())
        share = everybody / (self.members * number)
        strength = max(self.strength, 0.5 / share) if share else self.strength
        inverses = []
        for client in clients:
            before = sum(client in self.visits.get(t, set()) for t in range(1, number))
            chance = (strength * share + before) / (strength + number - 1)
            inverses.append(1 / chance)
        return inverses
