"""What the server knows of every client right now, and since which round.

fresh       its update was used in the last round
failed      it was asked and sent nothing that could be used
estimated   away; the rule estimates its update
away        away, and the rule estimates nothing
stale       away for twice its usual pause
gone        it counts as gone until it answers
unseen      it never came

A client's usual pause is its longest one so far; or, if that is longer, the median over all clients
of the same, with up to OPEN rounds since the last visit counted too. So clients that come in bursts
are not called stale, and one that has just joined is not either.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, final

from fedsteer.records.files import number
from fedsteer.records.rows import headline

STATES = ("failed", "gone", "stale", "fresh", "estimated", "away", "unseen")
"""The most urgent first."""
USED = ("fresh", "refresh", "collect")
UNUSED = ("dropped", "failed")
OPEN = 50  # rounds
LEAST = 10  # rounds of absence before a client is stale
PATIENCE = 2  # usual pauses
KNOWS_NOTHING = 1.0
"""The relative error of a rule that estimates nothing."""


@final
@dataclass
class Presence:
    """The visits of one client."""

    visits: int = 0
    last: int = 0  # round of the last visit
    began: int = 0  # first round of the visits, or failures, in a row that the last one ended
    longest: int = 0  # pause between two visits
    event: str = ""
    at: int = 0  # round of the event
    reason: str = ""

    def happened(self, moment: int, event: str, reason: str) -> None:
        in_a_row = event == self.event and (event != "used" or moment == self.last + 1)
        self.began = self.began if in_a_row else moment
        self.event, self.at, self.reason = event, moment, reason
        if event == "used":
            self.longest = max(self.longest, moment - self.last if self.visits else 0)
            self.visits, self.last = self.visits + 1, moment


@dataclass(frozen=True)
class ClientState:
    """One client in a frame."""

    name: str
    state: str
    since: int  # round; 0: from the beginning
    visits: int
    reason: str


@final
class Clients:
    """Every client of a run, from the rows of clients.jsonl."""

    def __init__(self, count: int = 0) -> None:
        self._known = {str(client): Presence() for client in range(count)}
        self._estimates = False
        self._latest = 0  # round

    def note(self, row: Mapping[str, Any]) -> None:
        """Take in a row of clients.jsonl."""
        client, event = row.get("client"), row.get("event")
        if client is None or not isinstance(event, str):
            return
        name = str(client)
        if (node := row.get("node")) is not None and str(node) != name:
            self._known.pop(str(node), None)  # its name until it first answered
        kind = "used" if event in USED else "failed" if event in UNUSED else event
        reason = headline(str(row.get("reason") or ""))
        moment = int(number(row, "round") or 0)
        self._latest = max(self._latest, moment)
        self._known.setdefault(name, Presence()).happened(moment, kind, reason)
        error = number(row, "relative_error")
        if error is not None and abs(error - KNOWS_NOTHING) > 1e-6:
            self._estimates = True

    def states(self, now: int) -> list[ClientState]:
        """All clients after round `now`; the most urgent first, and of these the longest so.

        Rows of a later round, of which no other row has been seen, make that the present one.
        """
        now = max(now, self._latest)
        usual = self._usual(now)
        found = [
            ClientState(
                name=name,
                state=(state := self._state(presence, now, usual)),
                since=presence.began if state in ("fresh", "failed", "gone") else presence.last,
                visits=presence.visits,
                reason=presence.reason if state in ("failed", "gone") else "",
            )
            for name, presence in self._known.items()
        ]
        return sorted(found, key=lambda one: (STATES.index(one.state), one.since))

    def _usual(self, now: int) -> float:
        """The median of the longest pauses."""
        pauses = (
            max(presence.longest, min(now - presence.last, OPEN))
            for presence in self._known.values()
            if presence.visits
        )
        return median([0, *pauses])

    def _state(self, presence: Presence, now: int, usual: float) -> str:
        if presence.event == "left":
            return "gone"
        if presence.event == "failed":
            return "failed"
        if not presence.visits:
            return "unseen"
        if presence.last >= now:
            return "fresh"
        if now - presence.last > max(PATIENCE * max(presence.longest, usual), LEAST):
            return "stale"
        return "estimated" if self._estimates else "away"


def counts(states: Iterable[ClientState]) -> dict[str, int]:
    """How many clients are in each state; states without any are left out."""
    found = Counter(one.state for one in states)
    return {state: found[state] for state in STATES if found[state]}
