"""A workload on disk: the same points, cohorts and initial weights for every simulator.

Images are made up from the seed (a prototype per class, and noise); what they show is of no
consequence to how long it takes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsteer.bench.workloads import Workload
from fedsteer.draws import generator

ROUNDS = 2_000
"""Cohorts are drawn for so many rounds, then they come again."""


@dataclass(frozen=True)
class Work:
    """Client i holds the points i * points to (i + 1) * points - 1."""

    workload: Workload
    pixels: NDArray[np.uint8]  # (clients * points, channels, height, width)
    labels: NDArray[np.int64]
    cohorts: NDArray[np.int64]  # (rounds, cohort), each in rising order
    initial: NDArray[np.float32]  # (d,) as torch orders and lays out parameters

    def images(self) -> NDArray[np.float32]:
        """Pixels from 0 to 1."""
        return self.pixels.astype(np.float32) / np.float32(255)

    def cohort(self, round: int) -> list[int]:
        """Who trains in a round, counted from 0."""
        found: list[int] = self.cohorts[round % len(self.cohorts)].tolist()
        return found

    def own(self, client: int) -> slice:
        """Where the points of a client lie."""
        return slice(client * self.workload.points, (client + 1) * self.workload.points)


def make_work(workload: Workload, seed: int = 0) -> Work:
    """A function of the seed alone."""
    count = workload.clients * workload.points
    prototypes = generator(seed, "bench prototypes").random((workload.classes, *workload.shape))
    labels = generator(seed, "bench labels").integers(0, workload.classes, count)
    pixels = np.empty((count, *workload.shape), np.uint8)
    for client in range(workload.clients):
        own = slice(client * workload.points, (client + 1) * workload.points)
        draw = generator(seed, "bench noise", client=client)
        noise = draw.standard_normal((workload.points, *workload.shape), np.float32)
        pixels[own] = np.rint(255 * (prototypes[labels[own]] + 0.3 * noise).clip(0, 1))
    cohorts = [
        np.sort(
            generator(seed, "bench cohort", round=round).choice(
                workload.clients, workload.cohort, replace=False
            )
        )
        for round in range(ROUNDS)
    ]
    return Work(workload, pixels, labels, np.stack(cohorts), _initial(workload, seed))


def _initial(workload: Workload, seed: int) -> NDArray[np.float32]:
    """Uniform, by the number of inputs, as torch does it."""
    draw, parts = generator(seed, "bench initial weights"), []
    for weight, bias in workload.parameter_shapes():
        bound = 1 / np.sqrt(np.prod(weight[1:]))
        parts += [draw.uniform(-bound, bound, int(np.prod(shape))) for shape in (weight, bias)]
    return np.concatenate(parts).astype(np.float32)


def save_work(work: Work, folder: Path) -> None:
    """Write it where workers find it."""
    np.savez(
        folder / "work.npz",
        pixels=work.pixels,
        labels=work.labels,
        cohorts=work.cohorts,
        initial=work.initial,
    )
    (folder / "workload.json").write_text(json.dumps(work.workload.as_dict()))


def load_work(folder: Path) -> Work:
    """Read it back."""
    workload = Workload.of(json.loads((folder / "workload.json").read_text()))
    with np.load(folder / "work.npz") as arrays:
        return Work(workload, **{name: arrays[name] for name in arrays.files})
