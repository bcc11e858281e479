"""Who owns the columns by search: after a cycle of the warm-up, and while training."""

from collections.abc import Sequence

import numpy as np

from fedsteer.draws import generator
from fedsteer.rules.fedsteer.options import FedSteerOptions
from fedsteer.rules.fedsteer.owners import Owners, searched_columns
from fedsteer.rules.fedsteer.search import Snapshot, search
from fedsteer.rules.warm_up import Collected
from fedsteer.steering.clients import Clients
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Floats
from fedsteer.steering.rounds import Active
from fedsteer.steering.table import Table

MOST_TARGETS = 1_000
"""Clients whose sketches a re-selection looks at. More would make it cost O(N^2)."""


def owners_after_cycle(
    options: FedSteerOptions, clients: Clients, collected: Collected, owners: Owners, cycle: int
) -> Owners:
    """The core set after one warm-up cycle, searched from the one of the cycle before."""
    snapshot = Snapshot.of(
        collected.gram(searched_columns(options, clients.dim)),
        _search_weights(options.objective, collected.shares, collected.probabilities),
        unit_targets=options.objective == "authors",
    )
    draw = generator(options.seed, "core-set search", round=cycle)
    place = {int(slot): index for index, slot in enumerate(collected.slots)}
    known = clients.roster.find([owner for owner in owners if owner is not None]).tolist()
    start = [place[slot] for slot in known if slot in place]
    # A core client that left, or sent nothing but zeros, gives its place to a random one.
    start = [index for index in start if index in snapshot.usable]
    spare = np.setdiff1d(snapshot.usable, start)
    missing = min(options.core_size - len(start), len(spare))
    start += draw.choice(spare, missing, replace=False).tolist() if missing > 0 else []
    candidates = None
    if options.candidates is not None:
        count = min(options.candidates, len(collected.slots))
        candidates = draw.choice(len(collected.slots), count, replace=False)
    found = search(snapshot, np.array(start, np.int64), options.ridge, options.swaps, candidates)
    return [clients.roster.name(int(collected.slots[index])) for index in found]


def reselect(
    options: FedSteerOptions,
    clients: Clients,
    active: Active,
    sketches: Table,
    owners: Sequence[ClientId | None],
) -> list[tuple[int, int]]:
    """Swaps that the sketches of past updates recommend: (column, position of the new owner).

    Only clients of this round can come in: the server has no update of anybody else.
    """
    seen = np.flatnonzero(np.any(sketches.values != 0, axis=1))
    if len(seen) > MOST_TARGETS:
        draw = generator(options.seed, "re-selection targets", round=active.round.number)
        seen = draw.choice(seen, MOST_TARGETS, replace=False)
    occupied = [column for column, owner in enumerate(owners) if owner is not None]
    # An owner never seen gets a slot that nothing else uses.
    holders = clients.roster.preview([owner for owner in owners if owner is not None])
    slots = np.unique(np.concatenate([seen, holders, active.slots]))
    sizes = clients.sizes_now(int(slots.max()) + 1, active)[slots]
    snapshot = Snapshot.of(
        sketches[slots] @ sketches[slots].T, sizes / max(float(sizes.sum()), 1e-300)
    )
    start = np.searchsorted(slots, holders)
    in_hand = np.searchsorted(slots, active.slots[active.fresh])
    found = search(snapshot, start, options.ridge, options.swaps, in_hand)
    position = {int(slot): i for i, slot in enumerate(active.slots)}
    return [
        (column, position[int(slots[new])])
        for column, old, new in zip(occupied, start, found, strict=True)
        if old != new
    ]


def _search_weights(objective: str, shares: Floats, probabilities: Floats) -> Floats:
    if objective == "variance":
        return shares**2 * (1 - probabilities) / probabilities
    return shares**2 / probabilities if objective == "authors" else shares
