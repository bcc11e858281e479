"""ClusterFedVARP, from its equation."""

from collections.abc import Sequence

import numpy as np

from tests.reference.population import Client, Population


class NaiveClusterFedVARP:
    """One remembered update per cluster as the estimate of all its members.

    Delta = sum_c D_c y_c + sum_A a_i (g_i - y_c(i)),   a_i = min(d_i / p_i, max_weight)
    D_c = sum of d_i over the present clients of cluster c
    y_c <- sum n_i g_i / sum n_i over the active members of c, y_c = 0 before

    A client in no cluster has the estimate 0. A cluster keeps y_c when members leave.
    """

    def __init__(
        self,
        dim: int,
        sizes: dict[Client, float] | None,
        clusters: dict[Client, int],
        n_clusters: int,
        max_weight: float | None = None,
    ) -> None:
        self.dim = dim
        self.population = Population(sizes)
        self.clusters = dict(clusters)
        self.max_weight = max_weight
        self.memory = np.zeros((n_clusters, dim))

    def step(
        self,
        number: int,
        clients: Sequence[Client],
        updates: np.ndarray,
        probabilities: Sequence[float],
        sizes: Sequence[float] | None = None,
        **extra: object,
    ) -> np.ndarray:
        self.population.begin(clients, probabilities, sizes)
        updates = np.asarray(updates, dtype=np.float64)
        delta = np.zeros(self.dim)
        for cluster in range(len(self.memory)):
            cluster_weight = 0.0
            for client in self.population.sizes:
                if self.clusters.get(client) == cluster:
                    cluster_weight += self.population.weight(client)
            delta = delta + cluster_weight * self.memory[cluster]
        for client, update, probability in zip(clients, updates, probabilities, strict=True):
            weight = self.population.active_weight(client, probability, self.max_weight)
            delta = delta + weight * (update - self.estimate(client))
        for cluster in range(len(self.memory)):
            total = 0.0
            fresh = np.zeros(self.dim)
            for client, update in zip(clients, updates, strict=True):
                if self.clusters.get(client) == cluster:
                    total += self.population.sizes[client]
                    fresh = fresh + self.population.sizes[client] * update
            if total > 0:
                self.memory[cluster] = fresh / total
        return delta

    def leave(self, clients: Sequence[Client]) -> None:
        self.population.leave(clients)

    def estimate(self, client: Client) -> np.ndarray:
        """y_c(i) for a present client of a cluster."""
        if client not in self.population.sizes or client not in self.clusters:
            return np.zeros(self.dim)
        return self.memory[self.clusters[client]].copy()
