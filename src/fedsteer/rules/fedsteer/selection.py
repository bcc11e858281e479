"""Who owns the columns before the first round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError
from fedsteer.rules.fedsteer.options import FedSteerOptions
from fedsteer.steering.ids import ClientId, id_order, plain_id

if TYPE_CHECKING:
    from fedsteer.steering.clients import Clients

Owners = list[ClientId | None]
"""Whose update each column is; None is a vacant column."""


def first_owners(options: FedSteerOptions, clients: Clients) -> Owners:
    searched_columns(options, clients.dim)  # refuse bad ones now, not after the warm-up
    if options.core_set is not None:
        clients.check_spelling("core_set", options.core_set)
        return [*options.core_set]
    if options.select == "online":
        return [None] * options.core_size
    if options.select == "frequent":
        assert options.frequencies is not None
        frequency = options.frequencies
        clients.check_spelling("frequencies", list(frequency))
        ranked = sorted(frequency, key=lambda client: (-frequency[client], id_order(client)))
        return [plain_id(client) for client in ranked[: options.core_size]]
    if not clients.closed:
        raise ConfigurationError(
            f"select={options.select!r} needs sizes: it must know all clients from the start; "
            "use select='online'"
        )
    members = clients.members()
    draw = generator(options.seed, "first core set")
    size = min(options.core_size, len(members))
    return [members[i] for i in draw.choice(len(members), size, replace=False)]


def searched_columns(options: FedSteerOptions, dim: int) -> slice:
    """The model weights that the warm-up's search looks at."""
    if options.search_columns is None:
        return slice(None)
    first, end = options.search_columns
    if not 0 <= first < end <= dim:
        raise ConfigurationError(
            f"search_columns must be (first, end) within the {dim} model weights, not "
            f"({first}, {end})"
        )
    return slice(first, end)
