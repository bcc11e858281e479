"""Client ids, whole numbers or strings, and the slot that the rows of a client live in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsteer.errors import RoundRefused
from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Integers

ClientId = int | str


def id_order(client: ClientId) -> tuple[bool, int, str]:
    """A total order over ids, so that results never depend on the order clients are listed in."""
    return (True, 0, client) if isinstance(client, str) else (False, client, "")


def plain_id(client: Any) -> ClientId:
    """An id as int or str, also if it is NumPy's; anything else is refused."""
    if type(client) is int:
        return client
    if isinstance(client, str):
        return str(client)
    if isinstance(client, (int, np.integer)) and not isinstance(client, bool):
        return int(client)
    raise RoundRefused(f"client ids are int or str, not {client!r}")


def plain_ids(clients: Any) -> list[ClientId]:
    if isinstance(clients, str) or not hasattr(clients, "__iter__"):
        raise RoundRefused(f"clients are a list of ids, not {clients!r}")
    return [plain_id(client) for client in clients]


@dataclass
class Roster(Component):
    """Ids 0..dense-1 are their own slots at no cost in memory; other ids are looked up.

    So a million simulated clients need no dictionary, and clients of a deployment may have any
    name. When a looked-up client leaves, the next newcomer gets its slot.
    """

    dense: int = 0
    ids: list[ClientId] = field(default_factory=list)  # looked-up ids and, beside them, their slots
    slots: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._slot_of = dict(zip(self.ids, self.slots, strict=True))

    @property
    def next_slot(self) -> int:
        """The first slot never used."""
        return self.dense + len(self.ids) + len(self.free)

    def find(self, clients: Sequence[ClientId]) -> Integers:
        """The slot of each client; -1 if it is unknown."""
        dense, slot_of = self.dense, self._slot_of
        places = [
            client if isinstance(client, int) and 0 <= client < dense else slot_of.get(client, -1)
            for client in clients
        ]
        return np.array(places, dtype=np.int64)

    def preview(self, clients: Sequence[ClientId]) -> Integers:
        """As `find`, but newcomers have the slot that `enrol` would give them. Writes nothing."""
        slots = self.find(clients)
        newcomers = [index for index, slot in enumerate(slots.tolist()) if slot < 0]
        if not newcomers:
            return slots
        newcomers.sort(key=lambda i: id_order(clients[i]))
        ahead = [*self.free[::-1], *range(self.next_slot, self.next_slot + len(newcomers))]
        for index, slot in zip(newcomers, ahead, strict=False):
            slots[index] = slot
        return slots

    def enrol(self, clients: Sequence[ClientId]) -> None:
        """Give every newcomer the slot that `preview` named."""
        planned = self.preview(clients).tolist()
        for index in np.flatnonzero(self.find(clients) < 0).tolist():
            client, slot = clients[index], planned[index]
            if slot in self.free:
                self.free.remove(slot)
            self.ids.append(client)
            self.slots.append(slot)
            self._slot_of[client] = slot

    def remove(self, clients: Iterable[ClientId]) -> None:
        """Forget looked-up ids; a dense id keeps its slot, which only it can ever use."""
        for client in sorted(clients, key=id_order):  # the order decides who gets the slots
            slot = self._slot_of.pop(client, None)
            if slot is not None:
                place = self.ids.index(client)
                del self.ids[place], self.slots[place]
                self.free.append(slot)

    def name(self, slot: int) -> ClientId:
        """The id with this slot."""
        return slot if slot < self.dense else self.ids[self.slots.index(slot)]

    def everyone(self) -> list[ClientId]:
        """All ids, dense ones first."""
        return [*range(self.dense), *self.ids]
