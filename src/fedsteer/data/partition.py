"""Who holds which training points: the result of every partition function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsteer.errors import ConfigurationError

Indices = NDArray[np.int64]

LET_SHARE = "replace=True (partition.replace=true) lets clients share points"
"""For errors: the Python argument, and the setting of an experiment or of --set."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The training points of every client, and the group its data puts it in.

    Client i holds the points `indices[i]`, which carry the labels `labels[i]` (sorted, each once),
    and belongs to the group `group_names[group[i]]`.
    """

    indices: tuple[Indices, ...]
    labels: tuple[Indices, ...]
    group: Indices
    group_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not len(self.indices) == len(self.labels) == len(self.group) > 0:
            raise ConfigurationError("a partition needs points, labels and a group for each client")
        if self.sizes.min() == 0:
            raise ConfigurationError(f"client {self.sizes.argmin()} would hold no points")
        if self.group.min() < 0 or self.group.max() >= len(self.group_names):
            raise ConfigurationError("a client belongs to a group without a name")

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.indices)

    @property
    def sizes(self) -> Indices:
        """The number of points of each client."""
        return np.fromiter(map(len, self.indices), np.int64, len(self.indices))


def partition_of(
    indices: Sequence[Indices],
    labels: Indices,
    group: Indices | None = None,
    group_names: tuple[str, ...] = ("everybody",),
) -> Partition:
    """A partition from the points of each client; `labels` are those of the whole training set."""
    if group is None:
        group = np.zeros(len(indices), dtype=np.int64)
    held = _counts(indices, labels) > 0
    owners, kinds = np.nonzero(held)
    per_client = np.split(kinds, np.searchsorted(owners, np.arange(1, len(indices))))
    return Partition(tuple(indices), tuple(per_client), group, group_names)


def who_holds_what(partition: Partition, labels: Indices) -> Indices:
    """How many points of each class each client holds, as (clients, classes)."""
    return _counts(partition.indices, labels)


def checked_labels(labels: NDArray[np.integer], clients: int, seed: int) -> Indices:
    """What every partition function asks of the arguments they share."""
    if labels.ndim != 1 or labels.size == 0 or not np.issubdtype(labels.dtype, np.integer):
        raise ConfigurationError("labels must be a non-empty one-dimensional array of integers")
    if labels.min() < 0:
        raise ConfigurationError(f"labels must not be negative, got {labels.min()}")
    if clients < 1:
        raise ConfigurationError(f"clients must be at least 1, got {clients}")
    if seed < 0:
        raise ConfigurationError(f"seed must not be negative, got {seed}")
    return labels.astype(np.int64, copy=False)


def checked_points(points: int | None, replace: bool, available: int) -> None:
    """`points` per client of `available` ones: needed as soon as clients share points."""
    if points is None:
        if replace:
            raise ConfigurationError(
                "replace=True needs points (partition.points), the number each client draws"
            )
    elif not 1 <= points <= available:
        raise ConfigurationError(f"points must lie in 1..{available}, got {points}")


def _counts(indices: Sequence[Indices], labels: Indices) -> Indices:
    classes = int(labels.max()) + 1
    owners = np.repeat(np.arange(len(indices)), [len(own) for own in indices])
    cells = owners * classes + labels[np.concatenate(indices)]
    return np.bincount(cells, minlength=len(indices) * classes).reshape(-1, classes)
