"""The bound on single updates from the whole history of norms."""

from __future__ import annotations

from typing import Any

import numpy as np


class NaiveUpdateBound:
    def __init__(self, times: float) -> None:
        self.times = times
        self.norms: list[float] = []

    def shortened(self, updates: Any) -> Any:
        norms = [float(np.linalg.norm(update)) for update in updates]
        usual = (self.norms or norms)[-100:]
        longest = self.times * float(np.median(usual)) if usual else 0.0
        self.norms += norms
        return np.array(
            [
                update * (longest / norm) ** 2 if norm > longest > 0 else update
                for update, norm in zip(updates, norms, strict=True)
            ]
        ).reshape(np.shape(updates))
