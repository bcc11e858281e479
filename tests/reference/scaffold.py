"""SCAFFOLD (option II), from its equations."""

from collections.abc import Sequence

import numpy as np

from tests.reference.population import Client, Population


class NaiveScaffold:
    """Control variates c (server) and c_i (clients), all 0 at first.

    local step:    y <- y - eta (grad - c_i + c),   g_i = w_sent - y
    participants:  Delta = sum_A n_i g_i / sum_A n_i
    importance:    Delta = sum_A a_i g_i,   a_i = min(d_i / p_i, max_weight)
    c_i' = c_i - c + g_i / (steps_i eta)                for i in A, with the c that was sent
    c_i <- c_i';  c = sum_i d_i c_i over all members, with the d_i of today

    With d_i that do not change this is the paper's c <- c + sum_A d_i (c_i' - c_i).
    """

    def __init__(
        self,
        dim: int,
        sizes: dict[Client, float] | None,
        local_rate: float,
        average: str = "participants",
        max_weight: float | None = None,
    ) -> None:
        if average not in ("participants", "importance"):
            raise ValueError(average)
        self.dim = dim
        self.population = Population(sizes)
        self.local_rate = local_rate
        self.average = average
        self.max_weight = max_weight
        self.control = np.zeros(dim)
        self.controls: dict[Client, np.ndarray] = {}

    def step(
        self,
        number: int,
        clients: Sequence[Client],
        updates: np.ndarray,
        probabilities: Sequence[float],
        sizes: Sequence[float] | None = None,
        *,
        steps: Sequence[int],
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
        if self.average == "participants" and total > 0:
            delta = delta / total

        sent = self.control
        for client, update, count in zip(clients, updates, steps, strict=True):
            old = self.client_control(client)
            self.controls[client] = old - sent + update / (count * self.local_rate)
        self._mean()
        return delta

    def leave(self, clients: Sequence[Client]) -> None:
        self.population.leave(clients)
        for client in clients:
            self.controls.pop(client, None)
        self._mean()

    def _mean(self) -> None:
        self.control = np.zeros(self.dim)
        for client, control in self.controls.items():
            self.control = self.control + self.population.weight(client) * control

    def client_control(self, client: Client) -> np.ndarray:
        """c_i."""
        return self.controls.get(client, np.zeros(self.dim)).copy()
