"""FedStale, from its equation."""

from collections.abc import Sequence

import numpy as np

from tests.reference.population import Client, Population


class NaiveFedStale:
    """The last update of every client, shrunk, as its estimate.

    Delta = sum_i d_i beta_i h_i + sum_A a_i (g_i - beta_i h_i),   a_i = min(d_i / p_i, max_weight)
    adaptive: beta_i <- clip(g_i . h_i / |h_i|^2, 0, 1) for i in A, with the h_i before the visit,
              and beta_i <- beta where that h_i is missing or zero
    h_i <- g_i for i in A, h_i = 0 before

    Without `adaptive`, beta_i = beta throughout.
    """

    def __init__(
        self,
        dim: int,
        sizes: dict[Client, float] | None,
        beta: float = 0.5,
        adaptive: bool = False,
        max_weight: float | None = None,
    ) -> None:
        self.dim = dim
        self.population = Population(sizes)
        self.beta = beta
        self.adaptive = adaptive
        self.max_weight = max_weight
        self.memory: dict[Client, np.ndarray] = {}
        self.betas: dict[Client, float] = {}

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
        for client in self.population.sizes:
            delta = delta + self.population.weight(client) * self.estimate(client)
        for client, update, probability in zip(clients, updates, probabilities, strict=True):
            weight = self.population.active_weight(client, probability, self.max_weight)
            delta = delta + weight * (update - self.estimate(client))
        for client, update in zip(clients, updates, strict=True):
            old = self.memory.get(client, np.zeros(self.dim))
            if self.adaptive and np.any(old != 0):
                ratio = float(np.dot(update, old)) / float(np.dot(old, old))
                self.betas[client] = min(max(ratio, 0.0), 1.0)
            else:
                self.betas[client] = self.beta
            self.memory[client] = update.copy()
        return delta

    def leave(self, clients: Sequence[Client]) -> None:
        self.population.leave(clients)
        for client in clients:
            self.memory.pop(client, None)
            self.betas.pop(client, None)

    def estimate(self, client: Client) -> np.ndarray:
        """beta_i h_i."""
        if client not in self.memory:
            return np.zeros(self.dim)
        return self.betas[client] * self.memory[client]
