"""Client ids: whole numbers or strings."""

from typing import Any

import numpy as np

from fedsteer.errors import RoundRefused

ClientId = int | str


def id_order(client: ClientId) -> tuple[bool, int, str]:
    """A total order over ids, so that results never depend on the order clients are listed in."""
    return (True, 0, client) if isinstance(client, str) else (False, client, "")


def plain_id(client: Any) -> ClientId:
    """An id as int or str; NumPy integers become int, anything else is refused."""
    if type(client) is int or isinstance(client, str):
        return client
    if isinstance(client, (int, np.integer)) and not isinstance(client, bool):
        return int(client)
    raise RoundRefused(f"client ids are int or str, not {client!r}")


def plain_ids(clients: Any) -> list[ClientId]:
    if isinstance(clients, str) or not hasattr(clients, "__iter__"):
        raise RoundRefused(f"clients are a list of ids, not {clients!r}")
    return [plain_id(client) for client in clients]
