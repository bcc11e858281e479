"""How many points a client takes of each label, and which."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedsteer.data.partition import Indices


def spread_evenly(
    points: int, room: Indices, used: Indices, rng: np.random.Generator
) -> Indices | None:
    """Divide `points` over labels as evenly as their `room` allows; None if it is too small.

    Odd points go to the labels least `used` so far, in random order among equals, so over many
    clients all labels are used equally.
    """
    if points > room.sum():
        return None
    quota = np.zeros_like(room)
    while points:
        unfilled = np.flatnonzero(quota < room)
        if points < len(unfilled):
            unfilled = rng.permutation(unfilled)
            unfilled = unfilled[np.argsort(used[unfilled], kind="stable")][:points]
        step = np.minimum(max(1, points // len(unfilled)), (room - quota)[unfilled])
        quota[unfilled] += step
        points -= int(step.sum())
    return quota


def draw_distinct(
    pools: list[Indices], kinds: Iterable[int], quota: Indices, rng: np.random.Generator
) -> Indices:
    """`quota` distinct points of the pool of each label in `kinds`; the pools stay as they are."""
    return np.concatenate(
        [
            pools[kind][rng.choice(len(pools[kind]), count, replace=False, shuffle=False)]
            for kind, count in zip(kinds, quota, strict=True)
            if count
        ]
    )
