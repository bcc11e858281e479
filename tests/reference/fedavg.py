"""FedAvg, from its equation."""

from collections.abc import Sequence

import numpy as np

from tests.reference.population import Client, Population


class NaiveFedAvg:
    """The average of the active clients' updates.

    importance:    Delta = sum_A a_i g_i,            a_i = min(d_i / p_i, max_weight)
    participants:  Delta = sum_A n_i g_i / sum_A n_i
    normalised:    Delta = sum_A a_i g_i / sum_A a_i
    """

    def __init__(
        self,
        dim: int,
        sizes: dict[Client, float] | None,
        average: str = "importance",
        max_weight: float | None = None,
    ) -> None:
        if average not in ("importance", "participants", "normalised"):
            raise ValueError(average)
        self.dim = dim
        self.population = Population(sizes)
        self.average = average
        self.max_weight = max_weight

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
        total = 0.0
        for client, update, probability in zip(clients, updates, probabilities, strict=True):
            if self.average == "participants":
                weight = self.population.sizes[client]
            else:
                weight = self.population.active_weight(client, probability, self.max_weight)
            delta = delta + weight * update
            total += weight
        if self.average != "importance" and total > 0:
            delta = delta / total
        return delta

    def leave(self, clients: Sequence[Client]) -> None:
        self.population.leave(clients)
