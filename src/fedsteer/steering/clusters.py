"""k-means on updates, from their Gram matrix alone."""

from __future__ import annotations

import numpy as np

from fedsteer.steering.kernels import Floats, Integers


def k_means(
    gram: Floats, weights: Floats, count: int, draw: np.random.Generator, rounds: int = 100
) -> Integers:
    """A cluster for each row: weighted Lloyd iterations after k-means++ seeding.

    Distances need inner products only: |g_i - mean_c|^2 = G_ii - 2 (G A)_ic + (A^T G A)_cc, with A
    the normalised memberships. An emptied cluster restarts at the worst-served client.
    """
    size = len(gram)
    count = min(count, size)
    squares = np.diag(gram)
    nearest = np.full(size, np.inf)
    seeds: list[int] = []
    for _ in range(count):
        odds = weights if not seeds else weights * np.maximum(nearest, 0.0)
        total = odds.sum()
        if total > 0:
            seeds.append(int(draw.choice(size, p=odds / total)))
        else:  # fewer distinct updates than clusters
            seeds.append(int(np.setdiff1d(np.arange(size), seeds)[0]))
        nearest = np.minimum(nearest, squares - 2 * gram[seeds[-1]] + squares[seeds[-1]])
    distances = squares[:, None] - 2 * gram[:, seeds] + squares[seeds]
    labels = np.argmin(distances, axis=1)
    for _ in range(rounds):
        members = np.zeros((size, count))
        members[np.arange(size), labels] = weights
        mass = members.sum(axis=0)
        for empty in np.flatnonzero(mass <= 0):
            worst = int(np.argmax(distances[np.arange(size), labels]))
            members[worst] = 0.0
            members[worst, empty] = weights[worst]
            labels[worst] = empty
            mass = members.sum(axis=0)
        means = members / np.where(mass > 0, mass, 1.0)
        across = gram @ means
        distances = squares[:, None] - 2 * across + np.sum(means * across, axis=0)
        moved = np.argmin(distances, axis=1)
        if np.array_equal(moved, labels):
            break
        labels = moved
    return np.asarray(labels, np.int64)
