"""MIFA, from its equation."""

from collections.abc import Sequence

import numpy as np

from tests.reference.population import Client, Population


class NaiveMIFA:
    """The average of every client's last update, the fresh ones included.

    h_i <- g_i for i in A, h_i = 0 before
    zeros:  Delta = sum_i d_i h_i
    wait:   the same, but 0 until every present client has answered once (closed population)
    seen:   Delta = sum_seen n_i h_i / sum_seen n_i
    """

    def __init__(self, dim: int, sizes: dict[Client, float] | None, start: str = "zeros") -> None:
        if start not in ("zeros", "wait", "seen"):
            raise ValueError(start)
        if start == "wait" and sizes is None:
            raise ValueError("an open population cannot be waited for")
        self.dim = dim
        self.population = Population(sizes)
        self.start = start
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
        for client, update in zip(clients, updates, strict=True):
            self.memory[client] = update.copy()

        delta = np.zeros(self.dim)
        if self.start == "seen":
            total = 0.0
            for client, last in self.memory.items():
                delta = delta + self.population.sizes[client] * last
                total += self.population.sizes[client]
            return delta / total if total > 0 else delta
        if self.start == "wait":
            for client in self.population.sizes:
                if client not in self.memory:
                    return delta
        for client in self.population.sizes:
            delta = delta + self.population.weight(client) * self.estimate(client)
        return delta

    def leave(self, clients: Sequence[Client]) -> None:
        self.population.leave(clients)
        for client in clients:
            self.memory.pop(client, None)

    def estimate(self, client: Client) -> np.ndarray:
        """h_i."""
        return self.memory.get(client, np.zeros(self.dim)).copy()
