"""Who forms the core set: before the first round, after a warm-up cycle, and while training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError
from fedsteer.rules.algorithm import Memory, Outcome
from fedsteer.rules.fedsteer_options import FedSteerOptions
from fedsteer.steering.coreset import Snapshot, search
from fedsteer.steering.kernels import Floats, Integers
from fedsteer.steering.roster import ClientId, id_order, plain_id
from fedsteer.steering.rounds import Active
from fedsteer.steering.subspace import Subspace
from fedsteer.steering.table import Table
from fedsteer.steering.warmup import Collected, WarmUp
from fedsteer.values import value

if TYPE_CHECKING:
    from fedsteer.steering.clients import Clients

Owners = list[ClientId | None]
"""Whose update each column is; None is a vacant column."""

MOST_TARGETS = 1_000
"""Clients whose sketches a re-selection looks at; more would make it cost O(N^2)."""


def first_owners(options: FedSteerOptions, clients: Clients) -> Owners:
    """Column owners before the first round; None is a vacant column."""
    first, end = options.search_columns or (0, clients.dim)
    if not 0 <= first < end <= clients.dim:
        raise ConfigurationError(
            f"search_columns must be (first, end) within the {clients.dim} model weights, not "
            f"({first}, {end})"
        )
    if options.core_set is not None:
        clients.check_spelling("core_set", options.core_set)
        return list[ClientId | None](options.core_set)
    if options.select == "online":
        return [None] * options.core_size
    if options.select == "frequent":
        assert options.frequencies is not None
        table = options.frequencies
        clients.check_spelling("frequencies", list(table))
        ranked = sorted(table, key=lambda client: (-table[client], id_order(client)))
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


def first_subspace(options: FedSteerOptions, owners: Owners, clients: Clients) -> Subspace:
    """Without a column yet, with room for the coordinates of all members."""
    members = len(clients.sizes.values)
    return Subspace.of(owners, basis=options.basis, magnitude=options.magnitude, members=members)


def search_snapshot(
    options: FedSteerOptions,
    clients: Clients,
    collected: Collected,
    owners: Owners,
    cycle: int,
) -> Owners:
    """The core set after one warm-up cycle, warm-started from the last one."""
    columns = slice(*options.search_columns) if options.search_columns else slice(None)
    weights = _search_weights(options.objective, collected.shares, collected.probabilities)
    unit_targets = options.objective == "authors"
    snapshot = Snapshot.of(collected.gram(columns), weights, unit_targets=unit_targets)
    draw = generator(options.seed, "core-set search", round=cycle)
    place = {int(slot): index for index, slot in enumerate(collected.slots)}
    known = [owner for owner in owners if owner is not None]
    start = [place[s] for s in clients.roster.find(known).tolist() if s in place]
    # A core client that left or never sent anything gives its place to a random one.
    start = [index for index in start if index in snapshot.usable]
    spare = np.setdiff1d(snapshot.usable, start)
    fill = min(options.core_size - len(start), len(spare))
    start += draw.choice(spare, fill, replace=False).tolist() if fill > 0 else []
    candidates = None
    if options.candidates is not None:
        count = min(options.candidates, len(collected.slots))
        candidates = draw.choice(len(collected.slots), count, replace=False)
    found = search(snapshot, np.array(start, np.int64), options.ridge, options.swaps, candidates)
    return [clients.roster.name(int(collected.slots[index])) for index in found]


@value
class Casting:
    """Which clients of a round touch which columns."""

    core: list[tuple[int, int]]  # (column, position) of every core client that answered
    refreshed: list[tuple[int, int]]  # those whose new update becomes the column
    candidates: list[int]  # positions that could take a column over
    gram_of: Integers  # whose mutual products the pass must take to keep the Gram matrix exact
    reselecting: bool


def roles(options: FedSteerOptions, owners: Owners, active: Active, rounds: int) -> Casting:
    """Before the pass: who could end up in a column after `rounds` training rounds."""
    column_of, fresh = _columns(tuple(owners)), active.fresh.tolist()
    core = [(column_of[c], i) for i, c in enumerate(active.clients) if c in column_of]
    reselecting = options.reselect_every is not None and (rounds + 1) % options.reselect_every == 0
    others = []
    if reselecting or None in owners:
        others = [i for i, c in enumerate(active.clients) if c not in column_of and fresh[i]]
        # In the order of slots, so that the order of the round's list does not matter.
        others.sort(key=lambda i: active.slots[i])
    refreshed = [(c, i) for c, i in core if fresh[i]]
    taking = [i for _, i in refreshed]  # in order
    gram_of = np.array(sorted({*taking, *others}) if others else taking, np.int64)
    return Casting(core, refreshed, others, gram_of, reselecting)


@lru_cache(maxsize=64)
def _columns(owners: tuple[ClientId | None, ...]) -> Mapping[ClientId, int]:
    """Whose column is which: the same from round to round, mostly."""
    return {owner: column for column, owner in enumerate(owners) if owner is not None}


def fill_vacant(
    casting: Casting, owners: Owners, active: Active, squared_norms: Floats
) -> list[tuple[int, int, ClientId]]:
    """(column, position, client): first seen, first in, until k columns are there."""
    if None not in owners:
        return []
    vacant = [column for column, owner in enumerate(owners) if owner is None]
    usable = [i for i in casting.candidates if squared_norms[i] > 0]
    return [(c, i, active.clients[i]) for c, i in zip(vacant, usable, strict=False)]


def reselect(
    options: FedSteerOptions,
    clients: Clients,
    active: Active,
    sketches: Table,
    owners: Owners,
) -> list[tuple[int, int, ClientId]]:
    """(column, position, client) swaps that sketches of past updates recommend.

    Only clients in hand can come in: of all others there is no update to put into a column.
    """
    everybody = np.arange(len(sketches.values))
    members = clients.sizes[everybody] > 0
    seen = np.flatnonzero(np.any(sketches.values != 0, axis=1) & members)
    if len(seen) > MOST_TARGETS:
        draw = generator(options.seed, "re-selection targets", round=active.number)
        seen = draw.choice(seen, MOST_TARGETS, replace=False)
    occupied = [column for column, owner in enumerate(owners) if owner is not None]
    holders = _holder_slots(clients, active, [owner for owner in owners if owner is not None])
    slots = np.unique(np.concatenate([seen, holders, active.slots]))
    sizes = clients.sizes[slots]
    sizes[np.searchsorted(slots, active.slots)] = active.sizes  # newcomers weigh from now on
    snapshot = Snapshot.of(
        sketches[slots] @ sketches[slots].T, sizes / max(float(sizes.sum()), 1e-300)
    )
    start = np.searchsorted(slots, holders)
    in_hand = np.searchsorted(slots, active.slots[active.fresh])
    found = search(snapshot, start, options.ridge, options.swaps, in_hand)
    position = {int(slot): i for i, slot in enumerate(active.slots)}
    swaps = [
        (column, position[int(slots[new])])
        for column, old, new in zip(occupied, start, found, strict=True)
        if old != new
    ]
    return [(column, i, active.clients[i]) for column, i in swaps]


def warm_up_outcome(memory: Memory, warm_up: WarmUp, active: Active, reinitialise: bool) -> Outcome:
    """A warm-up round: hold, or move by the full aggregate once everybody has answered."""
    result, complete = warm_up.compute(memory.clients, active)
    last = complete and warm_up.done + 1 >= warm_up.cycles
    return Outcome(
        delta=result.delta,
        delta_squared_norm=result.delta_squared_norm,
        squared_norms=result.squared_norms,
        weights=active.shares if complete else np.zeros(len(active)),
        action="restart" if last and reinitialise else "move" if complete else "hold",
        phase="warm-up",
        scratch=complete,
    )


def _holder_slots(clients: Clients, active: Active, owners: list[ClientId]) -> Integers:
    """Slots of column owners; one never seen gets a slot of its own that nobody has or will get."""
    here = dict(zip(active.clients, active.slots.tolist(), strict=True))
    known = clients.roster.find(owners).tolist()
    unused = clients.roster.next_slot + len(active)
    return np.array(
        [
            here.get(owner, slot if slot >= 0 else unused + index)
            for index, (owner, slot) in enumerate(zip(owners, known, strict=True))
        ],
        np.int64,
    )


def end_warm_up_round(
    options: FedSteerOptions,
    memory: Memory,
    warm_up: WarmUp,
    space: Subspace,
    active: Active,
    *,
    complete: bool,
    sketches: Table | None,
) -> tuple[Subspace, WarmUp | None]:
    """Keep the updates; after a whole cycle search, after the last one fill the columns.

    `sketches` are taken of the last snapshot: re-selection must know whom the search chose.
    """
    collected = warm_up.commit(memory.clients, active, complete)
    if collected is None:
        return space, warm_up
    clients = memory.clients
    owners = search_snapshot(options, clients, collected, space.owners, warm_up.done)
    fresh = first_subspace(options, owners, clients)
    if not warm_up.over:
        return fresh, warm_up
    if options.warm_start == "updates":
        slots = clients.roster.find([owner for owner in owners if owner is not None])
        fresh.load(collected.rows, slots, options.cache)
    if sketches is not None:
        sketches[collected.slots] = collected.sketch(options.width, options.seed)
    return fresh, None


def _search_weights(objective: str, shares: Floats, probabilities: Floats) -> Floats:
    if objective == "variance":
        return shares**2 * (1 - probabilities) / probabilities
    return shares**2 / probabilities if objective == "authors" else shares
