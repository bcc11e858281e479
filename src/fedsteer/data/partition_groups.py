"""Common and rare labels: the split of the FedSteer paper.

A fraction gamma of the clients (the common group) holds the first half of the labels, the others
(the rare group) the second half. Both groups hold about the same amount of data, so the few clients
of the rare group are large. With `points` the average over all clients, a common client has
floor(points / 2 / gamma) points and a rare one floor(points / 2 / (1 - gamma)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsteer.data.partition import (
    LET_SHARE,
    Indices,
    Partition,
    PartitionOptions,
    draw_distinct,
    partition_of,
    spread_evenly,
)
from fedsteer.errors import ConfigurationError
from fedsteer.options import option

_ROUNDING = 1e-9  # 1 - 0.95 is a little above 0.05 in floating point, but 50 / 0.05 is 1000

_GROUPS = ("common", "rare")


@dataclass(frozen=True)
class LabelGroups(PartitionOptions):
    """Common and rare labels (the paper's)."""

    kind = "label-groups"
    gamma: float = option(0.9, "share of clients in the common group", above=0, below=1)
    labels_per_client: float = option(
        1.0, "share of its group's labels a client holds", above=0, high=1
    )

    def label_groups(self, classes: int) -> dict[str, list[int]]:
        """The common labels and the rare ones."""
        return dict(zip(_GROUPS, (kinds.tolist() for kinds in _halves(classes)), strict=True))

    def draw(self, labels: Indices, rng: np.random.Generator) -> Partition:
        """Points by common and rare labels; which clients are common is drawn.

        A client holds a share `labels_per_client` of its group's labels, drawn for each client,
        and its points are spread over them as evenly as the data allows. `points=None` takes as
        many as both groups have.
        """
        classes = int(labels.max()) + 1
        if classes < 2:
            raise ConfigurationError("label-groups needs two or more labels")
        common_clients = round(self.gamma * self.clients)
        members = common_clients, self.clients - common_clients
        if min(members) < 1:
            raise ConfigurationError(
                f"gamma={self.gamma} of {self.clients} clients leaves a group empty"
            )
        halves, counts = _halves(classes), np.bincount(labels)
        sizes = self._sizes(members, halves, counts)
        group = np.ones(self.clients, dtype=np.int64)
        group[rng.permutation(self.clients)[:common_clients]] = 0
        pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        used = np.zeros_like(counts)
        indices = []
        for client, rare in enumerate(group):
            allowed = halves[rare]
            if self.labels_per_client < 1:
                share = max(1, _floor(self.labels_per_client * len(allowed)))
                allowed = rng.choice(allowed, share, replace=False)
            room = counts[allowed] if self.replace else (counts - used)[allowed]
            if sizes[rare] > room.sum():
                raise ConfigurationError(
                    f"client {client} needs {sizes[rare]} points of its {len(allowed)} labels, "
                    f"{room.sum()} are left; {self._remedy}"
                )
            quota = spread_evenly(sizes[rare], room, used[allowed], rng)
            if self.replace:
                indices.append(draw_distinct(pools, allowed, quota, rng))
            else:
                # The pools are shuffled: the next points of a pool are a random draw.
                takes = zip(allowed, used[allowed], quota, strict=True)
                indices.append(np.concatenate([pools[k][at : at + n] for k, at, n in takes]))
            used[allowed] += quota
        return partition_of(indices, group, _GROUPS)

    def _sizes(
        self, members: tuple[int, int], halves: list[Indices], counts: Indices
    ) -> tuple[int, ...]:
        """The points of a common and of a rare client."""
        shares, points = (self.gamma, 1 - self.gamma), self.points
        available = [int(counts[half].sum()) for half in halves]
        if points is None:
            each = [have // number for have, number in zip(available, members, strict=True)]
            points = min(_floor(2 * s * n) for s, n in zip(shares, each, strict=True))
        sizes = tuple(_floor(points / 2 / share) for share in shares)
        if min(sizes) < 1:
            raise ConfigurationError(f"points={points} leaves a group without data")
        for rare, name in enumerate(_GROUPS):
            number = 1 if self.replace else members[rare]
            if number * sizes[rare] > available[rare]:
                raise ConfigurationError(
                    f"the {name} group needs {number} x {sizes[rare]} = {number * sizes[rare]} "
                    f"points, its {len(halves[rare])} labels have {available[rare]}; {self._remedy}"
                )
        return sizes

    @property
    def _remedy(self) -> str:
        return "lower points" + ("" if self.replace else f" (partition.points); {LET_SHARE}")


def _halves(classes: int) -> list[Indices]:
    return np.split(np.arange(classes), [classes // 2])


def _floor(value: float) -> int:
    return math.floor(value + _ROUNDING)
