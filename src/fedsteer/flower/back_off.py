"""Clients that failed f rounds in a row are not asked in the next min(2^(f - 1), 32) - 1 rounds.

What nobody could help does not count: a round in which several were asked and nobody answered, or
an answer that was cut off because the round was closed early.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST = 5  # doublings: 32 rounds


@dataclass
class BackOff:
    """Failures in a row, and the round in which a client is asked again; in the checkpoint."""

    failures: dict[str, tuple[int, int]] = field(default_factory=dict)

    def keep(self, online: Collection[str]) -> None:
        """Forget all clients but these."""
        self.failures = {name: held for name, held in self.failures.items() if name in online}

    def eligible(self, clients: Mapping[int, str], number: int) -> dict[int, str]:
        """The nodes that may be asked in round `number`; all of them if there were none."""
        ready = {
            node: client
            for node, client in clients.items()
            if self.failures.get(client, (0, 0))[1] <= number
        }
        return ready or dict(clients)

    def note(self, number: int, answered: Collection[str], missed: Collection[str]) -> None:
        """These clients did, and did not, answer what they were asked in round `number`."""
        for client in answered:
            self.failures.pop(client, None)
        if answered or len(missed) == 1:
            for client in missed:
                times = self.failures.get(client, (0, 0))[0]
                self.failures[client] = times + 1, number + 2 ** min(times, LONGEST)

    def pack(self) -> list[Any]:
        return [[client, *held] for client, held in self.failures.items()]

    def restore(self, packed: Collection[Any]) -> None:
        self.failures = {client: (times, again) for client, times, again in packed}
