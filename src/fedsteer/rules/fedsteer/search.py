"""Core-set search (Algorithm 2), exactly and for all swaps at once.

The objective of a core set X over a snapshot of all updates g_i, with weights w_i and unit columns
c_j = g_j / |g_j|, at the optimal ridge coordinates s_i:

    J(X) = sum_i w_i (|g_i - Q s_i|^2 + lambda |s_i|^2)
         = sum_i w_i |g_i|^2 - tr((C_XX + lambda I)^-1 S_XX)
    C_jl = c_j . c_l,   B_ji = c_j . g_i,   S_jl = sum_i w_i B_ji B_li

Everything follows from the Gram matrix of the snapshot; nothing here has size d. Replacing column
r by outsider l changes the trace by a rank-two correction, so all k (N - k) swaps cost O(k^2 N).

The rule searches after each cycle of the warm-up and, if asked, while training. Only then is this
file imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsteer.draws import generator
from fedsteer.rules.fedsteer.options import FedSteerOptions
from fedsteer.rules.fedsteer.owners import Owners, searched_columns
from fedsteer.rules.fedsteer.ridge import pseudo_inverse
from fedsteer.rules.warm_up import Collected
from fedsteer.steering.clients import Clients
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Floats, Integers
from fedsteer.steering.rounds import Active
from fedsteer.steering.table import Table

FLOOR = 1e-12
"""At ridge 0 a dependent column divides 0 by 0; the floor makes such a swap worthless instead."""
SLIGHT = 1e-9
"""Swaps are ranked at this ridge at least: without any, columns that depend on one another have no
inverse, from which the gain of replacing one of them could be told."""
MOST_TARGETS = 1_000
"""Clients whose sketches a re-selection looks at. More would make it cost O(N^2)."""


@dataclass(frozen=True)
class Snapshot:
    """Inner products of all updates, ready for searching."""

    cosines: Floats  # C, zero rows for zero updates
    projections: Floats  # B
    weights: Floats  # w
    diagonal: Floats  # S_ll of every l
    energy: float  # sum_i w_i |g_i|^2
    usable: Integers  # indices of non-zero updates: only these can be columns

    @staticmethod
    def of(gram: Floats, weights: Floats, *, unit_targets: bool = False) -> Snapshot:
        """From the Gram matrix of the updates; `unit_targets` normalises the targets as well."""
        squares = np.maximum(np.diag(gram), 0.0)
        norms = np.sqrt(squares)
        # Relative to the largest: an update that is only rounding noise spans nothing.
        usable = norms > 1e-12 * (norms.max() if len(norms) else 0.0)
        inverse = np.where(usable, 1.0 / np.where(usable, norms, 1.0), 0.0)
        projections = inverse[:, None] * gram
        cosines = projections * inverse
        if unit_targets:
            projections, squares = cosines, (inverse > 0).astype(float)
        diagonal = projections**2 @ weights
        energy = float(weights @ squares)
        return Snapshot(
            cosines=cosines,
            projections=projections,
            weights=weights,
            diagonal=diagonal,
            energy=energy,
            usable=np.flatnonzero(usable),
        )

    def scatter(self, rows: Integers) -> Floats:
        """S_jl for j in `rows` and all l."""
        return (self.projections[rows] * self.weights) @ self.projections.T


def objective(snapshot: Snapshot, core: Integers, ridge: float) -> float:
    """J of one core set."""
    inverse = _inverse(snapshot.cosines[np.ix_(core, core)], ridge)
    return snapshot.energy - float(np.sum(inverse * snapshot.scatter(core)[:, core]))


def swap_objectives(
    snapshot: Snapshot, core: Integers, outsiders: Integers, ridge: float, scatter: Floats
) -> Floats:
    """(k, outsiders) J after each single swap; `scatter` is `snapshot.scatter(core)`."""
    inside = snapshot.cosines[np.ix_(core, core)]
    across = snapshot.cosines[np.ix_(core, outsiders)]
    own = scatter[:, core]  # S_XX
    mixed = scatter[:, outsiders]  # S_Xl
    diagonal = snapshot.diagonal[outsiders]  # S_ll

    inverse = _inverse(inside, ridge)  # P
    lift = inverse @ across  # U
    alpha = np.maximum(np.diag(inverse), FLOOR)[:, None]
    gamma = np.einsum("ij,jk,ki->i", inverse, own, inverse)[:, None]
    trace = float(np.sum(inverse * own))
    excess = inverse @ (own @ lift - mixed)  # E
    sigma = snapshot.cosines[outsiders, outsiders] + ridge - np.sum(across * lift, axis=0)
    quadratic = np.sum(lift * (own @ lift), axis=0) - 2 * np.sum(lift * mixed, axis=0) + diagonal
    ratio = lift / alpha  # b
    gained = quadratic - 2 * ratio * excess + ratio**2 * gamma
    # A column that depends on the others adds nothing, whatever 0/0 would say.
    room = sigma + lift * ratio
    gain = np.where(room > FLOOR, gained / np.maximum(room, FLOOR), 0.0)
    return snapshot.energy - (trace - gamma / alpha + gain)


def search(
    snapshot: Snapshot,
    start: Integers,
    ridge: float,
    max_swaps: int,
    candidates: Integers | None = None,
) -> Integers:
    """Best single swap after best single swap until none helps; columns keep their positions.

    `candidates` may be swapped in (default: all). J never rises.
    """
    core = np.array(start, dtype=np.int64)
    pool = snapshot.usable if candidates is None else np.intersect1d(candidates, snapshot.usable)
    if not len(core):
        return core
    scatter = snapshot.scatter(core)
    current = objective(snapshot, core, ridge)
    for _ in range(max_swaps):
        outsiders = np.setdiff1d(pool, core)
        if not len(outsiders):
            break
        after = swap_objectives(snapshot, core, outsiders, max(ridge, SLIGHT), scatter)
        column, place = np.unravel_index(int(np.argmin(after)), after.shape)
        trial = core.copy()
        trial[column] = outsiders[place]
        reached = objective(snapshot, trial, ridge)
        if not reached < current:
            break
        core, current = trial, reached
        scatter[column] = snapshot.scatter(core[column : column + 1])[0]
    return core


def _inverse(cosines: Floats, ridge: float) -> Floats:
    system = cosines + ridge * np.eye(len(cosines))
    if ridge > FLOOR:
        return np.asarray(np.linalg.inv(system), np.float64)
    return pseudo_inverse(system)


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
