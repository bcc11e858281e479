"""Which slot the rows of a client live in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId, id_order
from fedsteer.steering.kernels import Integers


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
