"""The aligned step from all past aggregates, each weighted anew in every round."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class NaiveAlignedStep:
    def __init__(self) -> None:
        self.past: list[Any] = []
        self.factor = 0.1

    def step(self, delta: Any) -> tuple[Any, float]:
        """The scaled aggregate and its alignment; nan if there is none."""
        delta = np.asarray(delta, np.float64)
        ages = range(len(self.past) - 1, -1, -1)
        mean = sum(0.1 * 0.9**age * old for age, old in zip(ages, self.past, strict=True))
        scaled, alignment = self.factor * delta, math.nan
        if np.linalg.norm(mean) > 0 and np.linalg.norm(delta) > 0:
            alignment = float(mean @ delta / np.linalg.norm(mean) / np.linalg.norm(delta))
            pace = 0.3 if alignment > 0 else 0.6
            self.factor = float(np.clip(self.factor * np.exp(pace * alignment), 0.02, 1.0))
        self.past.append(delta)
        return scaled, alignment
