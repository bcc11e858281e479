"""Common and rare labels: the split of the FedSteer paper.

A fraction gamma of the clients (the common group) holds the first half of the labels, the others
(the rare group) the second half. Both groups hold about the same amount of data, so the few clients
of the rare group are large. With `points` the average over all clients, a common client has
floor(points / 2 / gamma) points and a rare one floor(points / 2 / (1 - gamma)).

With `swap_after`, labels drift: from the round after it on, the groups hold each other's labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedsteer.data.partition import (
    LET_SHARE,
    Indices,
    Partition,
    PartitionOptions,
    draw_distinct,
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
    swap_after: int | None = option(
        None, "training rounds after which the groups swap labels; none: never", low=1
    )

    def draw(self, labels: Indices, rng: np.random.Generator) -> Partition:
        """Points by common and rare labels; which clients are common is drawn.

        A client holds a share `labels_per_client` of its group's labels, drawn for each client,
        and its points are spread over them as evenly as the data allows. `points=None` takes as
        many as both groups have. After a swap, clients of the same sizes draw their points from
        the labels of the other group.
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
        halves = np.split(np.arange(classes), [classes // 2])
        sizes = self._sizes(members, halves, np.bincount(labels))
        group = np.ones(self.clients, dtype=np.int64)
        group[rng.permutation(self.clients)[:common_clients]] = 0
        first = self._phase(labels, group, sizes, halves, rng)
        if self.swap_after is None:
            return first
        later = self._phase(labels, group, sizes, halves[::-1], rng)
        return replace(first, later=replace(later, since=self.swap_after + 1))

    def _phase(
        self,
        labels: Indices,
        group: Indices,
        sizes: tuple[int, ...],
        halves: list[Indices],
        rng: np.random.Generator,
    ) -> Partition:
        """Clients of group g have points of the labels `halves[g]`."""
        counts = np.bincount(labels)
        for name, half, members, size in zip(
            _GROUPS, halves, np.bincount(group), sizes, strict=True
        ):
            number, available = 1 if self.replace else members, counts[half].sum()
            if number * size > available:
                raise ConfigurationError(
                    f"the {name} group needs {number} x {size} = {number * size} points, "
                    f"its {len(half)} labels have {available}; {self._remedy}"
                )
        pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(counts))]
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
                indices.append(draw_distinct([pools[k] for k in allowed], quota, rng))
            else:
                # The pools are shuffled: the next points of a pool are a random draw.
                takes = zip(allowed, used[allowed], quota, strict=True)
                indices.append(np.concatenate([pools[k][at : at + n] for k, at, n in takes]))
            used[allowed] += quota
        kinds = {name: half.tolist() for name, half in zip(_GROUPS, halves, strict=True)}
        return Partition(
            indices=tuple(indices),
            labels=labels,
            groups=np.array(_GROUPS, dtype=object)[group],
            label_groups=kinds,
        )

    def _sizes(
        self, members: tuple[int, int], halves: list[Indices], counts: Indices
    ) -> tuple[int, ...]:
        """The points of a common and of a rare client."""
        shares, points = (self.gamma, 1 - self.gamma), self.points
        if points is None:
            have = [int(counts[half].sum()) for half in halves]
            each = [points // number for points, number in zip(have, members, strict=True)]
            points = min(_floor(2 * s * n) for s, n in zip(shares, each, strict=True))
        sizes = tuple(_floor(points / 2 / share) for share in shares)
        if min(sizes) < 1:
            raise ConfigurationError(f"points={points} leaves a group without data")
        return sizes

    @property
    def _remedy(self) -> str:
        return "lower points" + ("" if self.replace else f" (partition.points); {LET_SHARE}")


def _floor(value: float) -> int:
    return math.floor(value + _ROUNDING)
