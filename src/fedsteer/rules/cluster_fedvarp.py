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
from fedsteer.steering.clients import Clients
from fedsteer.steering.clusters import ClusterMemory, k_means
from fedsteer.steering.collection import Collected
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats
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
