"""The basis of FedSteer: k columns, each the latest update of one core client.

    rows      the columns h_j as they came ("raw")
    gram      their Gram matrix, kept exact from the products that every pass yields anyway
    Q         the scaled columns: h_j / |h_j|, or h_j / k with basis="mean"

Coordinates s_i are solved in Q. The estimate of client i is

    magnitude="fixed"     Q s_i: it keeps the length of the client's last update
    magnitude="follow"    sum_j h_j z_ij with z_ij = s_ij / |h_j|: it grows and shrinks with h_j

and what is stored is s_i or z_i. If another client takes over a column, nothing known is thrown
away: the stored coordinates z of old columns R become M z with M = (R'^T R')^+ R'^T R.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsteer.rules.algorithm import Beliefs, Estimates
from fedsteer.rules.fedsteer.owners import ColumnRoles
from fedsteer.rules.fedsteer.ridge import condition, generalised_inverse, ridge_solve
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats, Integers, Kernels, Pairs, Pass, kernels_for

if TYPE_CHECKING:
    from fedsteer.steering.rounds import Active

LONGEST = 1e3
"""With magnitude="follow", an update counts as at most this many times as long as a column.
Otherwise a column that was nearly zero once would blow up estimates when it grows again."""
LONGEST_CACHED = 3e38
"""The longest update whose estimates can be computed in float32."""
SHORTEST_NARROW = 1e-30
"""The shortest column that float32 can scale to unit length; a shorter one counts as zeros."""
AT_ONCE = 5
"""Columns are read in multiples of this number, or all of them."""
WIDE = 4
"""Bytes of a type that holds what is left of an update without the correction in it."""


class Geometry:
    """Scales of the columns. Read-only.

    gram     (k, k) of the raw columns
    basis    "unit" or "mean"
    scale    (k,) from raw to scaled columns: 1/|h_j|, or 1/k; 0 for vacant columns
    present  (k,) 1, or 0 for vacant columns and columns of zeros, or up to length `shortest`
    stored   (k,) from raw columns to those that stored coordinates refer to
    scaled   (k, k) K, the Gram matrix of the scaled columns
    """

    def __init__(self, gram: Floats, *, basis: str, magnitude: str, shortest: float = 0.0) -> None:
        squares = gram.diagonal()
        here = squares > shortest**2
        lengths = np.sqrt(squares, out=np.ones(len(gram)), where=here)
        self.gram = gram
        self.present: Floats = here.astype(np.float64)
        self.scale: Floats = self.present / (len(gram) if basis == "mean" else lengths)
        self.stored = self.present if magnitude == "follow" else self.scale
        # scale * scale could overflow
        self.scaled: Floats = (gram * self.scale[:, None]) * self.scale

    def beliefs(self, products: Floats, old: Floats, new: Floats) -> Beliefs:
        """What stored coordinates said of updates.

        products   (k, m) of raw columns and updates
        old, new   (m, k) before and after the round
        """
        present = np.flatnonzero(self.present)
        return Beliefs(
            before=self._estimates(products, old),
            after=self._estimates(products, new),
            condition=condition(self.scaled[np.ix_(present, present)]),
            columns=len(present),
        )

    def _estimates(self, products: Floats, stored: Floats) -> Estimates:
        coordinates = stored * self.stored
        return Estimates(
            products=np.vecdot(coordinates, products.T),
            squares=np.vecdot(coordinates @ self.gram, coordinates),
        )


@dataclass
class Columns(Component):
    """The columns, their owners and their Gram matrix."""

    owners: list[ClientId | None]  # whose update each column is; None: vacant
    gram: Floats  # (k, k) of the raw columns, zero for vacant ones; replaced, never written into
    rows: Array | None = None  # (k, d) raw columns, divided by `stretch`
    stretch: Floats | None = None  # (k,) |h_j| if the type of `rows` could not hold h_j
    basis: str = "unit"
    magnitude: str = "fixed"
    cache: str | None = None  # type of `rows`; None: that of the updates
    since: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # (k,) rounds, 0: none

    @staticmethod
    def vacant(owners: Sequence[ClientId | None], **kind: Any) -> Columns:
        """`kind` are basis, magnitude and cache."""
        return Columns(owners=list(owners), gram=np.zeros((len(owners), len(owners))), **kind)

    def __post_init__(self) -> None:
        if not len(self.since):
            self.since = np.zeros(len(self.owners), np.int64)
        self._set_gram(self.gram)

    def sweep(self, active: Active, gram_of: Integers, coefficients: Floats, ridge: float) -> Pass:
        """Q coefficients + sum_A a_i g_i and all products, in one pass over the updates."""
        used = self._used
        result = active.one_pass(
            active.weights,
            None if self.rows is None else self.rows[:used],
            (coefficients * self._row_scale())[:used],
            gram_of=gram_of,
            longest=math.inf if self.cache in (None, "float64") else LONGEST_CACHED,
            # Below this ridge a float32 Gram matrix of near-collinear columns is indefinite.
            precise=ridge < 1e-3,
        )
        products = np.zeros((len(self.owners), len(active.slots)))
        products[:used] = result.products
        if self.stretch is not None:
            products *= self.stretch[:, None]
        return replace(result, products=products)

    def solve(self, result: Pass, ridge: float, solver: str) -> Floats:
        """(m, k) ridge coordinates (K + ridge I)^-1 Q^T g_i of the updates, as stored."""
        geometry = self.geometry
        solved = ridge_solve(geometry.scaled, ridge, solver, geometry.scale, result.products).T
        if self.magnitude == "fixed":
            return solved
        norms = np.sqrt(result.squared_norms)
        steepest = np.full(len(norms), np.inf)
        np.divide(LONGEST, norms, out=steepest, where=norms > 0)
        return solved * np.minimum(geometry.scale, steepest[:, None])

    def own_coordinates(self, norms: Floats, roles: ColumnRoles) -> Floats:
        """(m, k) |g_i| e_i for core clients and zero for others, as stored.

        They refer to the columns that the step ends with: the client's new update, unless it was
        asked only to refresh.
        """
        stored = np.zeros((len(norms), len(self.owners)))
        for column, position in roles.core:
            fresh = (column, position) in roles.refreshed
            length = norms[position] if fresh else np.sqrt(self.gram[column, column])
            if length > 0:
                ratio = min(norms[position] / length, LONGEST)
                follow = self.magnitude == "follow"
                stored[position, column] = ratio if follow else norms[position]
        return stored

    def estimates(self, coordinates: Floats, like: Array) -> Array:
        """(m, d) the estimates that stored coordinates stand for."""
        kernels = kernels_for(like)
        if self.rows is None:
            return kernels.allocate((len(coordinates), like.shape[1]), like)
        return kernels.combine(coordinates * self._row_scale(), self.rows)

    def renew(
        self,
        result: Pass,
        active: Active,
        *,
        refreshed: Pairs,
        takeovers: Pairs,
        gram_of: Integers,
        added: Floats | None = None,
    ) -> Floats | None:
        """Columns for the next round, of the updates at these (column, position in the round).

        Refreshed columns take their owner's new update, then the takeovers happen. Returns the
        map M for all coordinates if a column went from one client to another, else None.

        gram_of   positions whose mutual products `result` has
        added     (m, k) coordinates of what corrections added to the updates; it stays out
        """
        changed = dict(refreshed) | dict(takeovers)
        if not changed:
            return None
        self.since[list(changed)] = active.round.number
        place = {position: i for i, position in enumerate(gram_of.tolist())}
        gram, across = self.gram.copy(), result.products.take(gram_of, axis=1)
        _exchange(gram, across, result.gram, [(column, place[i]) for column, i in refreshed])
        before, both = gram.copy(), gram.copy()
        swaps = [(column, place[position]) for column, position in takeovers]
        for column, update in swaps:
            both[column] = across[:, update]
        _exchange(gram, across, result.gram, swaps)
        change = None
        # Filling a vacant column moves no coordinates.
        if any(self.owners[column] is not None for column, _ in takeovers):
            change = self._map(before, both, gram)
        for column, position in takeovers:
            self.owners[column] = active.round.clients[position]
        updates = active.round.updates
        fresh = [updates[position] for position in changed.values()]
        if added is not None and self.rows is not None:
            factors = added[[*changed.values()]] * self._row_scale()
            parts = active.kernels.combine(factors, self.rows)
            fresh = [update - part for update, part in zip(fresh, parts, strict=True)]
        self._store([*changed], fresh, gram, active.kernels)
        return change

    def load(self, rows: Array, picked: Integers, number: int) -> None:
        """Take all columns from rows[picked] in round `number`, one per owner in order."""
        self.since[:] = number
        if len(picked):
            chosen = rows[picked]
            kernels = kernels_for(rows)
            gram = kernels.products(chosen, chosen)
            self._store([*range(len(picked))], [*chosen], gram, kernels)

    def vacate(self, column: int, *, keep_owner: bool) -> Floats:
        """Remove a column. Returns the map that removes every client's coordinate on it."""
        gram = self.gram.copy()
        gram[column] = gram[:, column] = 0.0
        self._set_gram(gram)
        if self.rows is not None:
            self.rows[column] = 0
        if not keep_owner:
            self.owners[column] = None
        change = np.eye(len(self.owners))
        change[column, column] = 0.0
        return change

    def _set_gram(self, gram: Floats) -> None:
        self.gram, self.geometry = gram, self._geometry(gram)

    def _geometry(self, gram: Floats) -> Geometry:
        rows = self.rows
        narrow = rows is not None and self.stretch is None and rows.dtype.itemsize <= WIDE
        shortest = SHORTEST_NARROW if narrow else 0.0
        return Geometry(gram, basis=self.basis, magnitude=self.magnitude, shortest=shortest)

    def _map(self, before: Floats, both: Floats, after: Floats) -> Floats:
        """M = (R'^T R')^+ R'^T R for columns R -> R', given R^T R, R'^T R and R'^T R'."""
        old, new = self._geometry(before).stored, self._geometry(after).stored
        inner, across = (after * new[:, None]) * new, (both * new[:, None]) * old
        return generalised_inverse(inner) @ across

    def _store(
        self, columns: list[int], fresh: Sequence[Array], gram: Floats, kernels: Kernels
    ) -> None:
        """rows[columns] <- fresh, where `gram` is of the exact columns."""
        if self.rows is None:
            like = fresh[0]
            self.rows = kernels.allocate((len(self.owners), len(like)), like, self.cache)
            if self.rows.dtype.itemsize < max(like.dtype.itemsize, WIDE):
                self.stretch = np.ones(len(self.owners))
        if self.stretch is not None:
            self._store_rounded(columns, fresh, gram, kernels)
        else:
            kernels.store(self.rows, columns, fresh)
            self._set_gram(gram)

    def _store_rounded(
        self, columns: list[int], fresh: Sequence[Array], gram: Floats, kernels: Kernels
    ) -> None:
        """At unit length, which every type holds; the Gram matrix is of the rounded columns."""
        assert self.rows is not None and self.stretch is not None
        lengths = np.sqrt(gram[columns, columns])
        lengths = np.where(lengths > 0, lengths, 1.0)
        for column, vector, length in zip(columns, fresh, lengths, strict=True):
            unit = kernels.combine(np.array([[1.0 / length]]), kernels.stack([vector]))
            self.rows[column] = unit[0]
        self.stretch[columns] = lengths
        rounded = kernels.products(self.rows, self.rows[columns]) * np.outer(self.stretch, lengths)
        gram = gram.copy()
        gram[:, columns] = rounded
        gram[columns] = rounded.T
        self._set_gram(gram)

    @property
    def _used(self) -> int:
        """How many columns to read: columns are filled from the first on, and the rest is zero.

        A multiple of a few, because a kernel of a GPU is compiled for each number of rows.
        """
        used = int(self.geometry.present.nonzero()[0].max(initial=-1)) + 1
        return min(-(-used // AT_ONCE) * AT_ONCE, len(self.owners))

    def _row_scale(self) -> Floats:
        """(k,) factors from `rows` to the columns that stored coordinates refer to."""
        scale = self.geometry.stored
        return scale if self.stretch is None else scale * self.stretch


def _exchange(gram: Floats, across: Floats, inner: Floats, pairs: Pairs) -> None:
    """Replace columns by updates, in place, in all inner products at hand.

    gram     (k, k) of the columns
    across   (k, c) of the columns and the updates
    inner    (c, c) of the updates
    pairs    (column, update that replaces it)
    """
    for column, update in pairs:
        across[column] = inner[update]
        gram[column] = gram[:, column] = across[:, update]
