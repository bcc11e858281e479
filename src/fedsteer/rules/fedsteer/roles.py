"""Which clients of a round touch which columns. Decided before the updates are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Floats, Integers

if TYPE_CHECKING:
    from fedsteer.steering.clients import Clients
    from fedsteer.steering.rounds import Active


@dataclass(frozen=True, kw_only=True)
class ColumnRoles:
    """Pairs are (column, position in the round)."""

    core: list[tuple[int, int]]  # every core client that answered
    refreshed: list[tuple[int, int]]  # those whose new update becomes the column
    candidates: list[int]  # positions that could take a column over
    gram_of: Integers  # positions whose mutual products keep the Gram matrix exact
    stale: list[int]  # columns to hand over, the longest unseen owner first
    reselecting: bool  # whether this round looks for better columns


def column_roles(
    owners: Sequence[ClientId | None],
    active: Active,
    *,
    stale: Sequence[int] = (),
    reselecting: bool = False,
) -> ColumnRoles:
    """Who could end up in a column after this round."""
    column_of = {owner: column for column, owner in enumerate(owners) if owner is not None}
    core = [(column_of[c], i) for i, c in enumerate(active.round.clients) if c in column_of]
    refreshed = [(column, i) for column, i in core if active.fresh[i]]
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
        stale=[column for column in stale if column not in dict(refreshed)],
        reselecting=reselecting,
    )


def stale_columns(
    owners: Sequence[ClientId | None], clients: Clients, number: int, renew_after: int | None
) -> list[int]:
    """Columns whose owner was away for more rounds than that, the longest first."""
    if renew_after is None:
        return []
    owned = [column for column, owner in enumerate(owners) if owner is not None]
    slots = clients.roster.find([owner for owner in owners if owner is not None])
    seen = np.where(slots >= 0, clients.last_seen[np.maximum(slots, 0)], 0)
    away = np.minimum(number - seen, clients.rounds + 1)  # a warm-up does not count
    long = [(int(rounds), column) for rounds, column in zip(away, owned, strict=True)]
    return [column for rounds, column in sorted(long, reverse=True) if rounds > renew_after]


def takeovers(
    roles: ColumnRoles, owners: Sequence[ClientId | None], squared_norms: Floats
) -> list[tuple[int, int]]:
    """(column, position of its new owner): first seen, first in, until all k columns are there.

    Stale columns go to the clients with the longest updates.
    """
    vacant = [column for column, owner in enumerate(owners) if owner is None]
    usable = [i for i in roles.candidates if squared_norms[i] > 0]
    filled = list(zip(vacant, usable, strict=False))
    left = sorted(usable[len(filled) :], key=lambda i: -squared_norms[i])
    return filled + list(zip(roles.stale, left, strict=False))
