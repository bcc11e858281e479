"""Who holds which training points, and what partitions share: options, checks, draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsteer import draws
from fedsteer.errors import ConfigurationError
from fedsteer.options import check_number, check_options, option

Indices = NDArray[np.int64]

MOST_CLIENTS = 10_000_000

# For errors: the Python argument, then the setting of an experiment.
LET_SHARE = "replace=True (partition.replace=true) lets clients share points"
DIVIDE_ALL = "points=None (partition.points=none) divides all data"


@dataclass(frozen=True, eq=False)
class Partition:
    """The training points of every client, and the group its data puts it in."""

    indices: tuple[Indices, ...]
    labels: Indices  # of all training points
    groups: NDArray[np.object_]  # (N,) names
    label_groups: dict[str, list[int]] = field(default_factory=dict)  # reported apart, if any
    since: int = 0  # the training round from which on clients hold these points
    later: Partition | None = None  # what they hold after that, if it changes

    @property
    def clients(self) -> int:
        return len(self.indices)

    @property
    def sizes(self) -> Indices:
        """The number of points of each client."""
        return np.fromiter(map(len, self.indices), np.int64, len(self.indices))

    @cached_property
    def holds(self) -> Indices:
        """How many points of each class each client holds, as (clients, classes)."""
        classes = int(self.labels.max()) + 1
        owners = np.repeat(np.arange(self.clients), self.sizes)
        cells = owners * classes + self.labels[np.concatenate(self.indices)]
        return np.bincount(cells, minlength=self.clients * classes).reshape(-1, classes)

    def at(self, round: int) -> Partition:
        """What clients hold in a training round; in round 0, the warm-up, what they begin with."""
        return self if self.later is None or round < self.later.since else self.later


@dataclass(frozen=True)
class PartitionOptions(ABC):
    """The section [partition] of an experiment; every kind adds settings of its own."""

    kind: ClassVar[str]

    clients: int = option(100, "how many there are", low=1, high=MOST_CLIENTS)
    points: int | None = option(None, "per client on average; none: all there are", low=1)
    replace: bool = option(False, "clients may share points (needed if N exceeds the data)")

    def __post_init__(self) -> None:
        check_options(self, "partition.")

    def divide(self, labels: NDArray[np.integer], seed: int) -> Partition:
        """The training points of every client; `labels` are those of the whole training set.

        Clients share no points unless `replace` is set; each client's own points are distinct.
        """
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size or labels.min() < 0:
            raise ConfigurationError("labels must be whole numbers from 0, one per point")
        check_number("seed", seed, whole=True, low=0)
        rng = draws.generator(seed, f"partition {self.kind.replace('-', ' ')}")
        return self.draw(labels.astype(np.int64, copy=False), rng)

    @abstractmethod
    def draw(self, labels: Indices, rng: np.random.Generator) -> Partition:
        """What `divide` returns; all draws come from `rng`."""

    def points_to_share(self, available: int) -> int:
        """`points`, which must be set if clients share points, of those available."""
        if self.points is None:
            raise ConfigurationError(
                "replace=True needs points (partition.points), the number each client draws"
            )
        check_number("points", self.points, high=available)
        return self.points

    def check_enough(self, each: int, available: int) -> None:
        """Refuse if clients who share no points cannot have `each` or more of those available."""
        if self.clients * each > available:
            instead = "" if self.points is None else f"{DIVIDE_ALL}, "
            raise ConfigurationError(
                f"{self.clients} clients need {self.clients * each} points or more, "
                f"the data has {available}; {instead}{LET_SHARE}"
            )


def partition_of(indices: Sequence[Indices], labels: Indices) -> Partition:
    """A partition from the points of each client; all clients are of one group."""
    groups = np.full(len(indices), "everybody", dtype=object)
    return Partition(indices=tuple(indices), labels=labels, groups=groups)


def spread_evenly(points: int, room: Indices, used: Indices, rng: np.random.Generator) -> Indices:
    """Divide `points` over labels as evenly as their `room`, which must suffice, allows.

    Odd points go to the labels least `used` so far, in random order among equals, so over many
    clients all labels are used equally.
    """
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


def draw_distinct(pools: Iterable[Indices], quota: Indices, rng: np.random.Generator) -> Indices:
    """As many distinct points of each pool as `quota` says; the pools stay as they are."""
    wanted = [(pool, count) for pool, count in zip(pools, quota, strict=True) if count]
    return np.concatenate([rng.choice(*each, replace=False, shuffle=False) for each in wanted])
