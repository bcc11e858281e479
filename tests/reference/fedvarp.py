"""FedVARP, from its equation."""

from collections.abc import Sequence

import numpy as np

from tests.reference.population import Client, Population


class NaiveFedVARP:
    """The last update of every client as its estimate.

    Delta = sum_i d_i h_i + sum_A a_i (g_i - h_i),   a_i = min(d_i / p_i, max_weight)
    h_i <- g_i for i in A, h_i = 0 before
    """

    def __init__(
        self, dim: int, sizes: dict[Client, float] | None, max_weight: float | None = None
    ) -> None:
        self.dim = dim
        self.population = Population(sizes)
        self.max_weight = max_weight
        self.memory: dict[Client, np.ndarray] = {}

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
            self.memory[client] = update.copy()
        return delta

    def leave(self, clients: Sequence[Client]) -> None:
        self.population.leave(clients)
        for client in clients:
            self.memory.pop(client, None)

    def estimate(self, client: Client) -> np.ndarray:
        """h_i."""
        return self.memory.get(client, np.zeros(self.dim)).copy()
