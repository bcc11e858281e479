"""Which clients of a round touch which columns. Decided before the updates are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Floats, Integers

if TYPE_CHECKING:
    from fedsteer.steering.rounds import Active


@dataclass(frozen=True, kw_only=True)
class ColumnRoles:
    """Pairs are (column, position in the round)."""

    core: list[tuple[int, int]]  # every core client that answered
    refreshed: list[tuple[int, int]]  # those whose new update becomes the column
    candidates: list[int]  # positions that could take a column over
    gram_of: Integers  # positions whose mutual products keep the Gram matrix exact
    reselecting: bool  # whether this round looks for better columns


def column_roles(
    owners: Sequence[ClientId | None], active: Active, *, reselecting: bool
) -> ColumnRoles:
    """Who could end up in a column after this round."""
    column_of = {owner: column for column, owner in enumerate(owners) if owner is not None}
    core = [(column_of[c], i) for i, c in enumerate(active.round.clients) if c in column_of]
    refreshed = [(column, i) for column, i in core if active.fresh[i]]
    candidates = []
    if reselecting or None in owners:
        newcomers = (i for i, c in enumerate(active.round.clients) if c not in column_of)
        # In the order of slots: the order in which clients are listed must not matter.
        candidates = sorted((i for i in newcomers if active.fresh[i]), key=active.slots.__getitem__)
    return ColumnRoles(
        core=core,
        refreshed=refreshed,
        candidates=candidates,
        gram_of=np.array(sorted({*candidates, *(i for _, i in refreshed)}), np.int64),
        reselecting=reselecting,
    )


def fill_vacant(
    roles: ColumnRoles, owners: Sequence[ClientId | None], squared_norms: Floats
) -> list[tuple[int, int]]:
    """First seen, first in, until all k columns are there: (column, position) of each takeover."""
    vacant = [column for column, owner in enumerate(owners) if owner is None]
    usable = [i for i in roles.candidates if squared_norms[i] > 0]
    return list(zip(vacant, usable, strict=False))
