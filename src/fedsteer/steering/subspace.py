"""The gradient subspace: k raw updates h_j as columns, and everybody's coordinates in it.

Columns are kept raw, with their exact k x k Gram matrix; unit columns are a scale on top:

    Q = [h_j / |h_j|],  estimate of client i = Q s_i

What is stored for a client is z_i: s_i itself (magnitude "fixed"), or s_ij / |h_j| to be used with
raw columns (magnitude "follow"; |h_j| counts as |g_i| / 1000 at least). u = sum_i n_i z_i is kept
up to date, so nothing loops over N.

When the owner of a column changes, what is known is mapped instead of dropped, s_i <- M s_i with
M = (Q'^T Q')^+ Q'^T Q. The map is stored once and applied to a client when it is next looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsteer.steering.geometry import Geometry, exchange
from fedsteer.steering.kernels import (
    Array,
    Floats,
    Integers,
    Kernels,
    Pairs,
    Pass,
    kernels_for,
)
from fedsteer.steering.ridge import generalised_inverse
from fedsteer.steering.roster import ClientId
from fedsteer.steering.rounds import Active
from fedsteer.steering.state import Component
from fedsteer.steering.table import OUTWEIGHS, Table

if TYPE_CHECKING:
    from fedsteer.steering.clients import Clients

LONGEST = 1e3
"""An update this many times as long as a column: with magnitude "follow", |h_j| is taken to be no
less. A column that was next to nothing once would multiply coordinates when it grows again."""
TWO_BYTES = ("float16", "bfloat16")
PENDING = 64
"""Maps kept before one sweep applies them to everybody; bounds both memory and work."""


@dataclass
class Subspace(Component):
    """Columns, owners, coordinates."""

    owners: list[ClientId | None]  # whose update each column is; None: vacant
    gram: Floats  # (k, k) of the raw columns, zero where there is none yet; replaced, not changed
    total: Floats  # (k,) u = sum_i n_i z_i
    coordinates: Table  # (N, k) z_i
    versions: Table  # (N,) how many maps were there when z_i was written
    maps: Floats  # (v, k, k) changes of basis not yet applied to everybody
    rows: Array | None = None  # (k, d) raw columns over `stretch`
    stretch: Floats | None = None  # (k,) 1, or |h_j| where two bytes could not hold h_j itself
    basis: str = "unit"
    magnitude: str = "fixed"
    longest: float = 0.0  # square of the longest part taken out of `total` since it is anew

    @staticmethod
    def of(
        owners: Sequence[ClientId | None], *, basis: str, magnitude: str, members: int = 0
    ) -> Subspace:
        """Without a column yet; `members` known now save the tables from growing by doubling."""
        size = len(owners)
        return Subspace(
            owners=list(owners),
            gram=np.zeros((size, size)),
            total=np.zeros(size),
            coordinates=Table.empty(members, size),
            versions=Table.empty(members, dtype="int64"),
            maps=np.zeros((0, size, size)),
            basis=basis,
            magnitude=magnitude,
        )

    def __post_init__(self) -> None:
        self._geometry = Geometry(self.gram, self.basis)

    @property
    def geometry(self) -> Geometry:
        """Of the columns as they are; kept until the Gram matrix is another array."""
        if self._geometry.gram is not self.gram:
            self._geometry = Geometry(self.gram, self.basis)
        return self._geometry

    @property
    def estimate_scale(self) -> Floats:
        """Factor from raw columns to those the stored coordinates z refer to."""
        return self.geometry.present if self.magnitude == "follow" else self.geometry.scale

    def read(self, slots: Integers) -> Floats:
        """(m, k) z_i in today's basis."""
        stored: Floats = self.coordinates[slots]  # a copy
        if not len(self.maps):
            return stored
        behind = self.versions[slots]
        for version in range(int(behind.min()) if len(behind) else 0, len(self.maps)):
            due = behind <= version
            stored[due] = stored[due] @ self.maps[version].T
        return stored

    def write(self, slots: Integers, coordinates: Floats) -> None:
        """z_i <- coordinates, given in today's basis."""
        self.coordinates[slots] = coordinates
        if len(self.maps):  # else all versions are 0
            self.versions[slots] = len(self.maps)

    def add_up(
        self, more: Floats, less: Floats, clients: Clients, active: Active | None = None
    ) -> None:
        """u <- u + more - less, after coordinates were written.

        From all clients anew, in O(N), where what was in it was far more than what is (OUTWEIGHS).
        """
        self.total = self.total + more - less
        self.longest = max(self.longest, float(less.dot(less)))
        if self.longest > OUTWEIGHS**2 * self.total.dot(self.total):
            self.longest = 0.0
            count = len(self.coordinates.values)
            self.total = clients.sizes_now(count, active) @ self.read(np.arange(count))

    def sweep(self, active: Active, coefficients: Floats, gram_of: Integers, precise: bool) -> Pass:
        """Q coefficients + sum_A a_i g_i and all products, in one pass over the updates."""
        result = active.one_pass(
            active.weights,
            self.rows,
            coefficients * self._raw_scale(),
            gram_of=gram_of,
            precise=precise,
        )
        if self.rows is None:
            return replace(result, products=np.zeros((len(self.owners), len(active))))
        if self.stretch is None:
            return result
        return replace(result, products=self.stretch[:, None] * result.products)

    def solve(self, result: Pass, ridge: float, solver: str) -> Floats:
        """(m, k) ridge coordinates from the products of raw columns and updates, as stored."""
        solved = self.geometry.solver(ridge, solver)(result.products).T
        if self.magnitude != "follow":
            return solved
        return solved * np.minimum(self.geometry.scale, _steepest(result.squared_norms)[:, None])

    def own_coordinates(
        self,
        norms: Floats,
        core: Sequence[tuple[int, int]],
        refreshed: Sequence[tuple[int, int]],
    ) -> Floats:
        """(m, k) |g_i| e_i for core clients, zero for others, as stored.

        Relative to the column the step ends with: the client's own new update, unless it was
        asked only to refresh.
        """
        stored = np.zeros((len(norms), len(self.owners)))
        for column, position in core:
            fresh = (column, position) in refreshed
            length = norms[position] if fresh else np.sqrt(self.gram[column, column])
            if length > 0:
                ratio = min(norms[position] / length, LONGEST)
                follow = self.magnitude == "follow"
                stored[position, column] = ratio if follow else norms[position]
        return stored

    def estimates(self, slots: Integers, like: Array) -> Array:
        """(m, d) the estimates themselves."""
        kernels = kernels_for(like)
        if self.rows is None:
            dtype = kernels.dtype_name(like)
            return kernels.allocate((len(slots), like.shape[1]), like, dtype)
        return kernels.combine(self.read(slots) * self._raw_scale(), self.rows)

    def renew(
        self,
        result: Pass,
        gram_of: Integers,
        refreshed: Pairs,
        installed: Sequence[tuple[int, int, ClientId]],
        updates: Array,
        cache: str | None,
    ) -> None:
        """Columns for the next round, after coordinates were written in today's basis.

        refreshed   (column, position in the round): the owner sent a new update
        installed   (column, position, client): another client takes the column over
        gram_of     the positions whose mutual products `result.gram` holds
        """
        if not refreshed and not installed:
            return
        taken = [(column, position) for column, position, _ in installed]
        due = [*refreshed, *taken]
        raw = self._holds_raw(updates, cache)
        if raw:  # first of all: a GPU copies, we go on
            kernels_for(updates).write_rows(self.rows, updates, due)
        place = {position: i for i, position in enumerate(gram_of.tolist())}
        gram, across = self.gram.copy(), result.products.take(gram_of, axis=1)
        exchange(gram, across, result.gram, [(column, place[i]) for column, i in refreshed])
        if taken:
            swaps = [(column, place[i]) for column, i in taken]
            before, both = gram.copy(), gram.copy()
            for column, update in swaps:
                both[column] = across[:, update]
            exchange(gram, across, result.gram, swaps)
            # A vacant column being filled moves nobody's coordinates.
            if any(self.owners[column] is not None for column, _ in taken):
                self._map(before, both, gram)
            for column, _, client in installed:
                self.owners[column] = client
        self.gram = gram
        if not raw:
            self._round(dict(due), updates)

    def load(self, rows: Array, picked: Integers, cache: str | None) -> None:
        """Columns taken from rows[picked], one per owner in order."""
        if not len(picked):
            return
        chosen, every = rows[picked], [(i, i) for i in range(len(picked))]
        self.gram = kernels_for(rows).gram(chosen)
        if self._holds_raw(rows, cache):
            kernels_for(rows).write_rows(self.rows, chosen, every)
        else:
            self._round(dict(every), chosen)

    def vacate(self, column: int, *, keep_owner: bool) -> None:
        """The column goes, and everybody's coordinate on it."""
        erase = np.eye(len(self.owners))
        erase[column, column] = 0.0
        self._push(erase)
        self.gram = self.gram.copy()
        self.gram[column] = self.gram[:, column] = 0.0
        if self.rows is not None:
            kernels = kernels_for(self.rows)
            kind = kernels.dtype_name(self.rows)
            nothing_left = kernels.allocate((1, self.rows.shape[1]), self.rows, kind)
            kernels.write_rows(self.rows, nothing_left, [(column, 0)])
        if not keep_owner:
            self.owners[column] = None

    def _map(self, before: Floats, both: Floats, after: Floats) -> None:
        """Push M = (R'^T R')^+ R'^T R for columns R -> R', given R^T R, R'^T R and R'^T R'."""

        def scale(gram: Floats) -> Floats:
            columns = Geometry(gram, self.basis)
            return columns.present if self.magnitude == "follow" else columns.scale

        old, new = scale(before), scale(after)
        inner, across = (after * new[:, None]) * new, (both * new[:, None]) * old
        self._push(generalised_inverse(inner) @ across)

    def _push(self, change: Floats) -> None:
        self.maps = np.concatenate([self.maps, change[None]])
        self.total = change @ self.total
        if len(self.maps) >= PENDING:
            everybody = np.arange(len(self.coordinates.values))
            current = self.read(everybody)
            self.maps = self.maps[:0]
            self.versions.values[:] = 0
            self.coordinates[everybody] = current

    def kept_as(self, updates: Array, cache: str | None) -> str | None:
        """The type of columns as they are; None where two bytes hold them at unit length."""
        kernels, rows = kernels_for(updates), self.rows
        if rows is None:
            rows = updates if cache is None else kernels.allocate((0, 1), updates, cache)
        kept = kernels.dtype_name(rows)
        return None if kept in TWO_BYTES else kept

    def _holds_raw(self, updates: Array, cache: str | None) -> bool:
        """Whether `rows`, made now if there are none, hold columns as they are."""
        kernels = kernels_for(updates)
        if self.rows is None:
            dtype = cache or kernels.dtype_name(updates)
            self.rows = kernels.allocate((len(self.owners), updates.shape[1]), updates, dtype)
        return self._is_raw(kernels)

    def _is_raw(self, kernels: Kernels) -> bool:
        return kernels.dtype_name(self.rows) not in TWO_BYTES

    def _round(self, changed: Mapping[int, int], updates: Array) -> None:
        """Write columns whose Gram matrix is known: two bytes hold unit columns well, others not.

        The Gram matrix becomes that of the rounded columns.
        """
        kernels = kernels_for(updates)
        columns, positions = np.array([*changed]), np.array([*changed.values()])
        lengths = np.sqrt(self.gram[columns, columns])
        lengths = np.where(lengths > 0, lengths, 1.0)
        unit = kernels.combine(np.diag(1.0 / lengths), updates[positions])
        kernels.write_rows(self.rows, unit, list(zip(changed, range(len(changed)), strict=True)))
        self.stretch = self._stretch()
        self.stretch[columns] = lengths
        assert self.rows is not None
        exact = kernels.products(self.rows, self.rows[columns]) * np.outer(self.stretch, lengths)
        self.gram = self.gram.copy()
        self.gram[:, columns] = exact
        self.gram[columns] = exact.T

    def _raw_scale(self) -> Floats:
        """Factor from `rows` to the columns that stored coordinates refer to."""
        scale = self.estimate_scale
        return scale if self.stretch is None else scale * self.stretch

    def _stretch(self) -> Floats:
        return np.ones(len(self.owners)) if self.stretch is None else self.stretch


def _steepest(squared_norms: Floats) -> Floats:
    """(m,) the most by which a coordinate on a unit column is multiplied to refer to a raw one."""
    norms = np.sqrt(squared_norms)
    steepest = np.full(len(norms), np.inf)
    np.divide(LONGEST, norms, out=steepest, where=norms > 0)
    return steepest
