"""What in a run's records an operator should hear of; the same again and again counts once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from fedsteer.records.files import number
from fedsteer.records.rows import headline

MOST = 20
NEXT_TO_NOTHING = 0.01
"""A smaller share of an update is worth a warning: honest ones are never cut down so far."""


@dataclass(frozen=True)
class Warned:
    """A warning, when it was given last, and how often."""

    text: str
    round: int
    client: str = ""  # the last one it was about
    times: int = 1


@final
class Warnings:
    """The last warnings, the latest first."""

    def __init__(self) -> None:
        self._found: dict[str, Warned] = {}

    def note(self, row: Mapping[str, Any]) -> None:
        """Take in a row of rounds.jsonl or clients.jsonl."""
        moment, client = int(number(row, "round") or 0), row.get("client")
        name = "" if client is None else str(client)
        for text in _of_a_round(row) if client is None else _of_a_client(row):
            before = self._found.pop(text, None)
            times = 1 if before is None else before.times + 1
            self._found[text] = Warned(text=text, round=moment, client=name, times=times)
            if len(self._found) > MOST:
                del self._found[next(iter(self._found))]

    def latest(self) -> list[Warned]:
        newest = reversed(self._found.values())
        return sorted(map(replace, newest), key=lambda one: -one.round)


def _of_a_round(row: Mapping[str, Any]) -> Iterator[str]:
    if row.get("phase") == "train" and number(row, "fresh") == 0:
        yield "no fresh update in the round"
    trust = number(row, "trust")
    if trust is not None and trust < 1:
        yield "far fewer clients come than before: estimates of the others count less"


def _of_a_client(row: Mapping[str, Any]) -> Iterator[str]:
    event, reason = row.get("event"), headline(str(row.get("reason") or "no reason given"))
    if event == "dropped":
        yield f"was dropped: {reason}"
    elif event == "failed":
        yield reason
    elif event == "left":
        yield f"counts as gone until it answers: {reason}"
    factor = number(row, "update_factor")
    if factor is not None and factor < NEXT_TO_NOTHING:
        yield "sent an update far too long"
    claimed, believed = number(row, "claimed_size"), number(row, "size")
    if claimed is not None and believed is not None and not believed <= 2 * claimed <= 4 * believed:
        yield "reported a number of data points far from what is believed"
