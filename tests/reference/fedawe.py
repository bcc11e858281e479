"""FedAWE, from its equation."""

from collections.abc import Sequence

import numpy as np

from tests.reference.population import Client


class NaiveFedAWE:
    """Clients continue from the model of their last active round; innovations are echoed.

    w^{t+1} = (1/|A|) sum_A [ w_i - eta_g (t - tau_i) g_i ],   g_i = w_i - w_i^E
    Delta = w^t - w^{t+1},   0 with no client active
    w_i <- w^{t+1}, tau_i <- t for i in A

    w_i is the initial model (that of the first step) and tau_i = 0 before the first active round,
    rounds being numbered from 1. A client that joins later starts from w^t with tau_i = t - 1.
    Sizes and probabilities play no part.
    """

    def __init__(self, dim: int, sizes: dict[Client, float] | None, rate: float = 1.0) -> None:
        self.dim = dim
        self.rate = rate
        self.initial: np.ndarray | None = None
        self.starts: dict[Client, np.ndarray] = {}
        self.last_round: dict[Client, int] = {}
        self.members = set(sizes or ())

    def step(
        self,
        number: int,
        clients: Sequence[Client],
        updates: np.ndarray,
        probabilities: Sequence[float] | None = None,
        sizes: Sequence[float] | None = None,
        *,
        model: np.ndarray,
        **extra: object,
    ) -> np.ndarray:
        model = np.asarray(model, dtype=np.float64)
        updates = np.asarray(updates, dtype=np.float64)
        if self.initial is None:
            self.initial = model.copy()
        if len(clients) == 0:
            return np.zeros(self.dim)
        total = np.zeros(self.dim)
        for client, update in zip(clients, updates, strict=True):
            joins = client not in self.members
            gap = 1 if joins else number - self.last_round.get(client, 0)
            start = model if joins else self.start(client)
            total = total + start - self.rate * gap * update
        new_model = total / len(clients)
        for client in clients:
            self.starts[client] = new_model.copy()
            self.last_round[client] = number
            self.members.add(client)
        return model - new_model

    def leave(self, clients: Sequence[Client]) -> None:
        for client in clients:
            self.starts.pop(client, None)
            self.last_round.pop(client, None)
            self.members.discard(client)

    def start(self, client: Client) -> np.ndarray:
        """w_i."""
        if client in self.starts:
            return self.starts[client].copy()
        if self.initial is None:
            raise ValueError("no step has shown the initial model yet")
        return self.initial.copy()
