"""Who owns the columns: at first, and after a round. Decided before its updates are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError
from fedsteer.rules.fedsteer.options import FedSteerOptions
from fedsteer.steering.ids import ClientId, id_order, plain_id
from fedsteer.steering.kernels import Floats, Integers

if TYPE_CHECKING:
    from fedsteer.steering.clients import Clients
    from fedsteer.steering.rounds import Active

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


@dataclass(frozen=True, kw_only=True)
class ColumnRoles:
    """Pairs are (column, position in the round)."""

    core: list[tuple[int, int]]  # every core client that answered
    refreshed: list[tuple[int, int]]  # those whose new update becomes the column
    candidates: list[int]  # positions that could take a column over
    gram_of: Integers  # positions whose mutual products keep the Gram matrix exact
    stale: list[int]  # columns to hand over, the oldest first
    reselecting: bool  # whether this round looks for better columns


def column_roles(
    owners: Owners,
    since: Integers,
    active: Active,
    *,
    renew_after: int | None = None,
    reselecting: bool = False,
) -> ColumnRoles:
    """Who could end up in a column after this round; the columns are as of the rounds `since`."""
    column_of = {owner: column for column, owner in enumerate(owners) if owner is not None}
    core = [(column_of[c], i) for i, c in enumerate(active.round.clients) if c in column_of]
    refreshed = [(column, i) for column, i in core if active.fresh[i]]
    stale: list[int] = []
    if renew_after is not None:
        ages = active.round.number - since
        ages[[column for column, _ in refreshed]] = 0
        oldest_first = np.argsort(-ages, kind="stable").tolist()
        stale = [c for c in oldest_first if ages[c] > renew_after and owners[c] is not None]
    candidates = []
    if reselecting or stale or None in owners:
        newcomers = (i for i, c in enumerate(active.round.clients) if c not in column_of)
        # In the order of slots: the order in which clients are listed must not matter.
        candidates = sorted((i for i in newcomers if active.fresh[i]), key=active.slots.__getitem__)
    return ColumnRoles(
        core=core,
        refreshed=refreshed,
        candidates=candidates,
        gram_of=np.array(sorted({*candidates, *(i for _, i in refreshed)}), np.int64),
        stale=stale,
        reselecting=reselecting,
    )


def takeovers(roles: ColumnRoles, owners: Owners, squared_norms: Floats) -> list[tuple[int, int]]:
    """(column, position of its new owner): first seen, first in, until all k columns are there.

    Stale columns go to the clients with the longest updates.
    """
    vacant = [column for column, owner in enumerate(owners) if owner is None]
    usable = [i for i in roles.candidates if squared_norms[i] > 0]
    filled = list(zip(vacant, usable, strict=False))
    left = sorted(usable[len(filled) :], key=lambda i: -squared_norms[i])
    return filled + list(zip(roles.stale, left, strict=False))
