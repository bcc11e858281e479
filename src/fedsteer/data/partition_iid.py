"""Every client's points are a uniform sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsteer import draws
from fedsteer.data.partition import (
    DIVIDE_ALL,
    LET_SHARE,
    Indices,
    Partition,
    PartitionOptions,
    checked_labels,
    checked_points,
    partition_of,
)
from fedsteer.errors import ConfigurationError


@dataclass(frozen=True)
class IidOptions(PartitionOptions):
    """Every client's points are a uniform sample."""

    kind = "iid"

    def divide(self, labels: Indices, seed: int) -> Partition:
        """Uniform samples."""
        return iid(labels, seed=seed, **vars(self))


def iid(
    labels: Indices,
    clients: int = 100,
    points: int | None = None,
    *,
    seed: int,
    replace: bool = False,
) -> Partition:
    """`points` random points per client, or all of the data in equal parts if it is None.

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
        instead = "" if points is None else f"{DIVIDE_ALL}, "
        raise ConfigurationError(
            f"{clients} clients need {needed} points or more, the data has {len(labels)}; "
            f"{instead}{LET_SHARE}"
        )
    order = rng.permutation(len(labels))
    return partition_of(np.array_split(order[:needed] if points else order, clients), labels)
