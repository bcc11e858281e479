"""What a state tells about its clients, by id."""

from typing import Any, final

import numpy as np

from fedsteer.steering.clients import Clients
from fedsteer.steering.ids import ClientId
from fedsteer.steering.probability import Known
from fedsteer.steering.table import Table


@final
class ClientsView:
    """The clients of a state, read-only. Take a new one from the state after each step."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def __repr__(self) -> str:
        return f"<{len(self)} clients after round {self.number}>"

    def __len__(self) -> int:
        return int((self._clients.sizes.values > 0).sum())

    @property
    def number(self) -> int:
        """The number of the last round."""
        return self._clients.number

    @property
    def rounds(self) -> int:
        """Training rounds so far; those of a warm-up do not count."""
        return self._clients.rounds

    @property
    def members(self) -> list[ClientId]:
        """The ids of all members."""
        return self._clients.members()

    @property
    def silent(self) -> list[ClientId]:
        """Clients of a closed population that were silent for too long, until they return."""
        roster, away = self._clients.roster, self._clients.away.values
        return [roster.name(int(slot)) for slot in np.flatnonzero(away > 0)]

    @property
    def sizes(self) -> dict[ClientId, float]:
        """n_i of each member."""
        return self._of_members(self._clients.sizes)

    @property
    def last_seen(self) -> dict[ClientId, int]:
        """The last round each member took part in; 0: none yet."""
        return self._of_members(Table(self._clients.attendance.last))

    @property
    def probabilities(self) -> dict[ClientId, float] | None:
        """p_i of each member if it takes part in the next round; None if rounds bring them."""
        source, names = self._clients.source, self.members
        if isinstance(source, Known):
            return None
        slots = self._clients.roster.find(names)
        found = 1.0 / source.inverse(
            slots, self._clients.clock + 1, np.zeros(len(slots), dtype=bool)
        )
        return dict(zip(names, found.tolist(), strict=True))

    def _of_members(self, table: Table) -> dict[ClientId, Any]:
        names = self.members
        return dict(zip(names, table[self._clients.roster.find(names)].tolist(), strict=True))
