"""Every client's points are a uniform sample."""

from __future__ import annotations

import numpy as np

from fedsteer import draws
from fedsteer.data.partition import (
    LET_SHARE,
    Indices,
    Partition,
    checked_labels,
    checked_points,
    partition_of,
)
from fedsteer.errors import ConfigurationError


def iid(
    labels: Indices,
    clients: int = 100,
    points: int | None = None,
    *,
    seed: int,
    replace: bool = False,
) -> Partition:
    """`points` random points each, or all of the data in equal parts without `points`.

    Clients share no points unless `replace` is set; each client's own points are distinct.
    """
    labels = checked_labels(labels, clients, seed)
    checked_points(points, replace, len(labels))
    rng = draws.generator(seed, "partition iid")
    if replace and points is not None:
        return partition_of(
            [rng.choice(len(labels), points, replace=False) for _ in range(clients)], labels
        )
    needed = clients * (points or 1)
    if needed > len(labels):
        instead = "" if points is None else "points=None (partition.points=none) divides all data, "
        raise ConfigurationError(
            f"{clients} clients need {needed} points or more, the data has {len(labels)}; "
            f"{instead}{LET_SHARE}"
        )
    order = rng.permutation(len(labels))
    return partition_of(np.array_split(order[:needed] if points else order, clients), labels)
