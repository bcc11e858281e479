"""Core-set search (Algorithm 2), exactly and for all swaps at once.

The objective of a core set X over a snapshot of all updates g_i, with weights w_i and unit columns
c_j = g_j / |g_j|, at the optimal ridge coordinates s_i:

    J(X) = sum_i w_i (|g_i - Q s_i|^2 + lambda |s_i|^2)
         = sum_i w_i |g_i|^2 - tr((C_XX + lambda I)^-1 S_XX)
    C_jl = c_j . c_l,   B_ji = c_j . g_i,   S_jl = sum_i w_i B_ji B_li

Everything follows from the Gram matrix of the snapshot; nothing here has size d. Replacing column
r by outsider l changes the trace by a rank-two correction, so all k (N - k) swaps cost O(k^2 N).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsteer.rules.fedsteer.ridge import pseudo_inverse
from fedsteer.steering.kernels import Floats, Integers

FLOOR = 1e-12
"""At ridge 0 a dependent column divides 0 by 0; the floor makes such a swap worthless instead."""
SLIGHT = 1e-9
"""Swaps are ranked at this ridge at least: without any, columns that depend on one another have no
inverse, from which the gain of replacing one of them could be told."""


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
        scattered: Floats = (self.projections[rows] * self.weights) @ self.projections.T
        return scattered


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
    after: Floats = snapshot.energy - (trace - gamma / alpha + gain)
    return after


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
