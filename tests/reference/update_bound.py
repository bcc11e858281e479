"""The bound on single updates from the whole history of norms."""

from __future__ import annotations

from typing import Any

import numpy as np


class NaiveUpdateBound:
    def __init__(self, times: float) -> None:
        self.times = times
        self.norms: list[float] = []
        self.last: dict[Any, float] = {}

    def leave(self, clients: Any) -> None:
        for client in clients:
            self.last.pop(client, None)

    def shortened(self, clients: Any, updates: Any) -> Any:
        norms = [float(np.linalg.norm(update)) for update in updates]
        usual = (self.norms or norms)[-100:]
        median = sorted(usual)[(len(usual) - 1) // 2] if usual else 0.0
        found = []
        for client, update, norm in zip(clients, updates, norms, strict=True):
            longest = self.times * max(median, min(self.last.get(client, 0.0), 4 * median))
            found.append(update * (longest / norm) ** 2 if norm > longest > 0 else update)
        self.norms += norms
        self.last |= dict(zip(clients, norms, strict=True))
        return np.array(found).reshape(np.shape(updates))
