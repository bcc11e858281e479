"""ClusterFedVARP: one remembered update per cluster (Jhunjhunwala et al. 2022).

    Delta = sum_c D_c y_c + sum_A d_i/p_i (g_i - y_c(i)),    D_c the weight of cluster c
    y_c <- n_i-weighted mean of the fresh updates of its active members

FedSteer's rival at equal memory, clusters x d. Clusters are given, or found by k-means on the
snapshot of FedSteer's warm-up, or online: the first clients found one cluster each, and later ones
join the y_c that is most aligned with their first update (from the next round on, so that every
aggregate stays unbiased).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, final

import numpy as np

from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError
from fedsteer.options import numbers_by_client, option
from fedsteer.rules.algorithm import Algorithm, Beliefs, Estimates, Memory, Outcome
from fedsteer.rules.options import Options, WarmUpOptions
from fedsteer.rules.warm_up import Collected
from fedsteer.steering.clients import Clients
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats, Integers, Pass, kernels_for
from fedsteer.steering.rounds import Active
from fedsteer.steering.table import Table


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(WarmUpOptions):
    clusters: Mapping[ClientId, int] | None = option(None, "cluster of each client, {id: cluster}")
    cluster_count: int = option(10, "number of clusters: memory is this many updates", low=1)
    select: str = option(
        "search",
        "how clusters are found: k-means after a warm-up, or online as clients appear",
        choices=("search", "online"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clusters is not None:
            last = self.cluster_count - 1  # numbers begin at 0
            numbers_by_client("clusters", self.clusters, whole=True, low=0, high=last)

    @property
    def warms_up(self) -> bool:
        return self.clusters is None and self.select == "search"


@dataclass
class ClusterMemory(Component):
    """One remembered update y_c per cluster, and the cluster of each client."""

    gram: Floats  # (c, c) of the y_c
    mass: Floats  # (c,) sum of n_i over members: n D_c
    member_of: Table  # (N,) cluster; -1: none yet
    rows: Array | None = None  # (c, d) y_c

    def assign(
        self, slots: Any, labels: Integers, sizes: Floats, old_sizes: Floats | None = None
    ) -> None:
        """Move clients between clusters, with their weight."""
        before = self.member_of[slots].astype(np.int64)
        if old_sizes is not None:
            np.subtract.at(self.mass, before[before >= 0], old_sizes[before >= 0])
        np.add.at(self.mass, labels[labels >= 0], sizes[labels >= 0])
        self.member_of[slots] = labels

    def leave(self, slots: Any, sizes: Floats) -> None:
        """Remove these members. The mass of an emptied cluster becomes exactly 0."""
        left = np.unique(self.member_of[slots].astype(np.int64))
        self.assign(slots, np.full(len(slots), -1), np.zeros(len(slots)), sizes)
        for cluster in left[left >= 0]:
            if not np.any(self.member_of.values == cluster):
                self.mass[cluster] = 0.0

    def place_newcomers(self, active: Active, labels: Integers, result: Pass) -> Integers:
        """Clusters after this round: clients without one found one, or join the most aligned.

        The y_c of a cluster founded in this round is its founder's update.
        """
        labels = labels.copy()
        products, squares = result.products.copy(), np.diag(self.gram).copy()
        fresh = np.flatnonzero(active.fresh)  # the order of `result.gram`
        empty = [int(c) for c in np.flatnonzero(self.mass <= 0)]
        usable = active.fresh & (labels < 0) & (result.squared_norms > 0)
        for position in sorted(np.flatnonzero(usable), key=lambda i: active.slots[i]):
            if empty:
                founded = labels[position] = empty.pop(0)
                products[founded, fresh] = result.gram[np.searchsorted(fresh, position)]
                squares[founded] = result.squared_norms[position]
            else:
                lengths = np.sqrt(np.maximum(squares, 1e-300))
                labels[position] = int(np.argmax(products[:, position] / lengths))
        return labels

    def renew(self, active: Active, labels: Integers, result: Pass) -> None:
        """y_c <- n_i-weighted mean of the fresh updates of its active members."""
        positions = np.flatnonzero(active.fresh & (labels >= 0))
        touched, where = np.unique(labels[positions], return_inverse=True)
        if not len(touched):
            return
        kernels, updates = active.kernels, active.round.updates
        mixing = np.zeros((len(touched), len(active)))
        mixing[where, positions] = active.sizes[positions]
        mixing /= mixing.sum(axis=1, keepdims=True)
        if self.rows is None:
            self.rows = kernels.allocate((len(self.mass), updates.shape[1]), updates)
        means = kernels.combine(mixing, updates)
        for cluster, mean in zip(touched.tolist(), means, strict=True):
            self.rows[cluster] = mean
        self.gram[:, touched] = result.products @ mixing.T
        self.gram[touched] = self.gram[:, touched].T
        fresh = mixing[:, active.fresh]
        self.gram[np.ix_(touched, touched)] = fresh @ result.gram @ fresh.T

    def estimates(self, slots: Any, like: Array) -> Array:
        """(m, d) y_c of each client's cluster; zeros without one."""
        if self.rows is None:
            return kernels_for(like).allocate((len(slots), like.shape[1]), like)
        labels = self.member_of[slots].astype(np.int64)
        picks = np.zeros((len(slots), len(self.mass)))
        picks[labels >= 0, labels[labels >= 0]] = 1.0
        return kernels_for(self.rows).combine(picks, self.rows)


@final
class ClusterFedVARP(Algorithm):
    """One remembered update per cluster."""

    name: ClassVar[str] = "cluster_fedvarp"
    options_type: ClassVar[type[Options]] = ClusterOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"practical": {"select": "online"}}
    state_options: ClassVar[tuple[str, ...]] = ("cluster_count", "select")
    options: ClusterOptions

    def begin(self, clients: Clients) -> Component:
        options, count = self.options, self.options.cluster_count
        if options.warms_up and not clients.closed:
            raise ConfigurationError("select='search' needs sizes; use select='online'")
        own = ClusterMemory(
            gram=np.zeros((count, count)),
            mass=np.zeros(count),
            member_of=Table.empty(0, fill=-1.0),
        )
        if options.clusters is not None:
            members = clients.members()
            slots = clients.roster.find(members)
            labels = np.array([options.clusters.get(client, -1) for client in members], np.int64)
            clients.check_spelling("clusters", list(options.clusters))
            own.assign(slots, labels, clients.sizes[slots])
        return own

    def compute(self, memory: Memory, active: Active) -> Outcome:
        own: ClusterMemory = memory.own
        labels = own.member_of[active.slots].astype(np.int64)
        if given := self.options.clusters:  # also newcomers have one
            labels = np.array([given.get(client, -1) for client in active.round.clients], np.int64)
        belongs = np.zeros((len(own.mass), len(active)))
        belongs[labels[labels >= 0], np.flatnonzero(labels >= 0)] = 1.0
        known = own.member_of[active.slots] >= 0
        mass = own.mass + belongs @ (active.sizes - np.where(known, active.old_sizes, 0.0))
        total = active.total if active.total > 0 else 1.0
        result = active.one_pass(
            active.weights,
            own.rows,
            active.trust * (mass / total - belongs @ active.weights),
            gram_of=np.flatnonzero(active.fresh),
        )
        if own.rows is None:
            result = replace(result, products=np.zeros_like(belongs))
        squares = own.gram.diagonal()
        return Outcome(
            result=result,
            weights=active.weights,
            believe=partial(
                Beliefs,
                before=Estimates(
                    products=active.trust * np.sum(belongs * result.products, axis=0),
                    squares=active.trust**2 * squares @ belongs,
                ),
                columns=int((squares > 0).sum()),
            ),
            scratch=labels,
        )

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        own: ClusterMemory = memory.own
        labels, result = outcome.scratch, outcome.result
        if self.options.clusters is None:
            labels = own.place_newcomers(active, labels, result)
        own.assign(active.slots, labels, active.sizes, active.old_sizes)
        own.renew(active, labels, result)

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        memory.own.leave(slots, sizes)

    def after_cycle(
        self, memory: Memory, collected: Collected, cycle: int, *, last: bool
    ) -> Component:
        own: ClusterMemory = memory.own
        if last:
            draw = generator(self.options.seed, "clusters")
            labels = k_means(collected.gram(), collected.shares, len(own.mass), draw)
            own.assign(collected.slots, labels, collected.sizes)
        return own

    def estimates(self, memory: Memory, slots: Any) -> Array | None:
        return memory.own.estimates(slots, memory.like)


def k_means(
    gram: Floats, weights: Floats, count: int, draw: np.random.Generator, rounds: int = 100
) -> Integers:
    """A cluster for each row: weighted Lloyd iterations after k-means++ seeding.

    Distances need inner products only: |g_i - mean_c|^2 = G_ii - 2 (G A)_ic + (A^T G A)_cc, with A
    the normalised memberships. An emptied cluster restarts at the worst-served client.
    """
    size = len(gram)
    count = min(count, size)
    squares = np.diag(gram)
    nearest = np.full(size, np.inf)
    seeds: list[int] = []
    for _ in range(count):
        odds = weights if not seeds else weights * np.maximum(nearest, 0.0)
        total = odds.sum()
        if total > 0:
            seeds.append(int(draw.choice(size, p=odds / total)))
        else:  # fewer distinct updates than clusters
            seeds.append(int(np.setdiff1d(np.arange(size), seeds)[0]))
        nearest = np.minimum(nearest, squares - 2 * gram[seeds[-1]] + squares[seeds[-1]])
    distances = squares[:, None] - 2 * gram[:, seeds] + squares[seeds]
    labels = np.argmin(distances, axis=1)
    for _ in range(rounds):
        members = np.zeros((size, count))
        members[np.arange(size), labels] = weights
        mass = members.sum(axis=0)
        for empty in np.flatnonzero(mass <= 0):
            worst = int(np.argmax(distances[np.arange(size), labels]))
            members[worst] = 0.0
            members[worst, empty] = weights[worst]
            labels[worst] = empty
            mass = members.sum(axis=0)
        means = members / np.where(mass > 0, mass, 1.0)
        across = gram @ means
        distances = squares[:, None] - 2 * across + np.sum(means * across, axis=0)
        moved = np.argmin(distances, axis=1)
        if np.array_equal(moved, labels):
            break
        labels = moved
    return np.asarray(labels, np.int64)
