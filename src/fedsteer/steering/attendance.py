"""Who came and when: which clients have left, and how far estimates of absent ones are trusted.

**Silence.** A client's usual interval is the longest one between two of its visits so far; or, if
that is longer, the median over all clients of the same, with up to OPEN rounds since the last visit
counted too: clients that come in bursts are not taken for gone, and those that vanish together
leave, later. A client is gone after `times` usual intervals of silence, at least LEAST rounds, if
it has made VISITS visits.

**Trust.** What the estimates of absent clients count for in a round, known before it:

    t = min(1, 2 C / P)
    C <- .9 C + clients that came,   P <- .9 P + clients that were predicted to come
"""

from dataclasses import dataclass, field

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Integers
from fedsteer.steering.table import Table

VISITS = 3
LEAST = 100  # rounds of silence
EVERY = 10  # rounds between two looks
OPEN = 50  # rounds
LAST, CLOCK, LONGEST, COUNT = range(4)
FADE = 0.9
ENOUGH = 0.5
"""Share of the predicted clients that is enough for full trust."""


@dataclass
class Trust(Component):
    """How many clients came in the latest rounds, about ten, and how many were predicted."""

    factor: float = 1.0  # t of the next round
    came: float = 0.0
    predicted: float = 0.0
    expected: float = 0.0  # in the next round

    def observe(self, came: int, expected: float) -> None:
        """Take in how many clients came; `expected` is the prediction for the next round."""
        self.came = FADE * self.came + came
        self.predicted = FADE * self.predicted + self.expected
        self.expected = expected
        if self.predicted > 0.0:
            self.factor = min(1.0, self.came / (ENOUGH * self.predicted))


@dataclass
class Attendance(Component):
    """Per slot: the last visit (0: never), its clock, the longest interval, and how many visits.

    The clock counts the rounds in which a client came, so an outage is not taken for silence.
    """

    visits: Table = field(default_factory=lambda: Table.empty(0, 4, dtype="int64"))
    trust: Trust | None = None  # None: estimates always count in full

    @property
    def last(self) -> Integers:
        return self.visits.values[:, LAST]

    def note(
        self, slots: Integers, number: int, clock: int, *, came: int, expected: float | None = None
    ) -> Integers:
        """These clients are here in round `number`; when they were here before.

        came       how many of them came by themselves
        expected   how many will in the next round; None: this one tells nothing about trust
        """
        if self.trust is not None and expected is not None:
            self.trust.observe(came, expected)
        visits = self.visits.reaching(slots)
        before: Integers = visits[slots, LAST]
        interval = np.where(before > 0, clock - visits[slots, CLOCK], 0)
        visits[slots, LONGEST] = np.maximum(visits[slots, LONGEST], interval)
        visits[slots, LAST], visits[slots, CLOCK] = number, clock
        visits[slots, COUNT] += 1
        return before

    def silent(self, members: Integers, clock: int, times: float) -> tuple[Integers, Integers]:
        """Members that are gone, and those half way there since the last look."""
        _, last, longest, count = self.visits[members].T
        away = clock - last
        common = np.median(np.maximum(longest, np.minimum(away, OPEN))) if len(members) else 0
        limit = np.maximum(times * np.maximum(longest, common), LEAST)
        known = count >= VISITS
        fading = known & (away > limit / 2) & (away - EVERY <= limit / 2)
        return members[known & (away > limit)], members[fading]

    def forget(self, slots: Integers) -> None:
        self.visits[slots] = 0

    def restart(self) -> None:
        """All visits so far were part of a warm-up."""
        self.visits.values[:] = 0
