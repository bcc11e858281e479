"""The norm bound on Delta, from its equation."""

from collections.abc import Sequence

import numpy as np

from tests.reference.population import Client


class NaiveNormBound:
    """|sum_i d_i g_i| <= sum_i d_i |g_i|, with the last known norm of each client.

    b = sum_known n_i |g_i| / sum_known n_i,   this round's updates included
    Delta <- Delta min(1, rho b / |Delta|)

    While no norm is known, or |Delta| = 0, Delta stays as it is.
    """

    def __init__(self, factor: float, sizes: dict[Client, float] | None = None) -> None:
        self.factor = factor
        self.sizes: dict[Client, float] = dict(sizes or {})
        self.norms: dict[Client, float] = {}

    def step(
        self,
        delta: np.ndarray,
        clients: Sequence[Client],
        updates: np.ndarray,
        sizes: Sequence[float] | None = None,
    ) -> np.ndarray:
        """The scaled Delta; `sizes` as in the rules (1 where none was ever given)."""
        delta = np.asarray(delta, dtype=np.float64)
        updates = np.asarray(updates, dtype=np.float64)
        for position, client in enumerate(clients):
            if sizes is not None:
                self.sizes[client] = float(sizes[position])
            self.norms[client] = float(np.linalg.norm(updates[position]))
        length = float(np.linalg.norm(delta))
        if not self.norms or length == 0:
            return delta.copy()
        return delta * min(1.0, self.factor * self.bound() / length)

    def bound(self) -> float:
        """b."""
        weighted = 0.0
        total = 0.0
        for client, norm in self.norms.items():
            weighted += self.sizes.get(client, 1.0) * norm
            total += self.sizes.get(client, 1.0)
        return weighted / total

    def leave(self, clients: Sequence[Client]) -> None:
        for client in clients:
            self.norms.pop(client, None)
            self.sizes.pop(client, None)
