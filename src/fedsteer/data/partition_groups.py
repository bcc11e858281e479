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

from fedsteer import draws
from fedsteer.data.partition import (
    LET_SHARE,
    Indices,
    Partition,
    PartitionOptions,
    checked_labels,
    draw_distinct,
    partition_of,
    spread_evenly,
)
from fedsteer.errors import ConfigurationError
from fedsteer.options import option

_ROUNDING = 1e-9  # 1 - 0.95 is a little above 0.05 in floating point, but 50 / 0.05 is 1000

_OR_SHARE = f" (partition.points); {LET_SHARE}"
_GROUPS = ("common", "rare")


@dataclass(frozen=True)
class LabelGroupsOptions(PartitionOptions):
    """Common and rare labels (the paper's)."""

    kind = "label-groups"
    gamma: float = option(0.9, "share of clients in the common group", above=0, below=1)
    labels_per_client: float = option(
        1.0, "share of its group's labels a client holds", above=0, high=1
    )

    def divide(self, labels: Indices, seed: int) -> Partition:
        """Points by common and rare labels."""
        return label_groups(labels, seed=seed, **vars(self))

    def label_groups(self, classes: int) -> dict[str, list[int]]:
        """The common labels and the rare ones."""
        return dict(zip(_GROUPS, (kinds.tolist() for kinds in _halves(classes)), strict=True))


def label_groups(
    labels: Indices,
    clients: int = 100,
    gamma: float = 0.9,
    points: int | None = 100,
    *,
    seed: int,
    labels_per_client: float = 1.0,
    replace: bool = False,
) -> Partition:
    """Divide by common and rare labels; which clients are common is drawn from `seed`.

    A client holds a share `labels_per_client` of its group's labels, drawn for each client, and
    its points are spread over them as evenly as the data allows. Clients share no points unless
    `replace` is set; each client's own points are distinct. `points=None` takes as many as both
    groups have.
    """
    labels = checked_labels(labels, clients, seed)
    classes = int(labels.max()) + 1
    if classes < 2:
        raise ConfigurationError("label_groups needs two or more labels")
    if not 0 < gamma < 1:
        raise ConfigurationError(f"gamma must be between 0 and 1, got {gamma}")
    if not 0 < labels_per_client <= 1:
        raise ConfigurationError(f"labels_per_client must be in (0, 1], got {labels_per_client}")
    common_clients = round(gamma * clients)
    if not 0 < common_clients < clients:
        raise ConfigurationError(f"gamma={gamma} of {clients} clients leaves a group empty")
    shares = gamma, 1 - gamma
    if points is None:
        common = np.count_nonzero(labels < classes // 2)
        each = common // common_clients, (len(labels) - common) // (clients - common_clients)
        points = min(_floor(2 * s * n) for s, n in zip(shares, each, strict=True))
    sizes = tuple(_floor(points / 2 / share) for share in shares)
    if min(sizes) < 1:
        raise ConfigurationError(f"points={points} leaves a group without data")

    rng = draws.generator(seed, "partition label groups")
    group = np.ones(clients, dtype=np.int64)
    group[rng.permutation(clients)[:common_clients]] = 0
    kinds = _halves(classes)
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    _refuse_too_few(group, sizes, kinds, pools, replace)

    counts = np.array([len(pool) for pool in pools])
    used = np.zeros_like(counts)
    indices = []
    for client, rare in enumerate(group):
        allowed = kinds[rare]
        if labels_per_client < 1:
            share = max(1, _floor(labels_per_client * len(allowed)))
            allowed = rng.choice(allowed, share, replace=False)
        room = counts[allowed] if replace else (counts - used)[allowed]
        quota = spread_evenly(sizes[rare], room, used[allowed], rng)
        if quota is None:
            raise ConfigurationError(
                f"client {client} needs {sizes[rare]} points of its {len(allowed)} labels, "
                f"{room.sum()} are left; lower points" + ("" if replace else _OR_SHARE)
            )
        if replace:
            indices.append(draw_distinct(pools, allowed, quota, rng))
        else:
            # The pools are shuffled: the next points of a pool are a random draw.
            takes = zip(allowed, used[allowed], quota, strict=True)
            indices.append(np.concatenate([pools[k][at : at + n] for k, at, n in takes]))
        used[allowed] += quota
    return partition_of(indices, labels, group, _GROUPS)


def _halves(classes: int) -> list[Indices]:
    return np.split(np.arange(classes), [classes // 2])


def _refuse_too_few(
    group: Indices,
    sizes: tuple[int, ...],
    kinds: list[Indices],
    pools: list[Indices],
    replace: bool,
) -> None:
    for number, name in enumerate(_GROUPS):
        members = 1 if replace else int((group == number).sum())
        available = sum(len(pools[label]) for label in kinds[number])
        if members * sizes[number] > available:
            raise ConfigurationError(
                f"the {name} group needs {members} x {sizes[number]} = {members * sizes[number]} "
                f"points, its {len(kinds[number])} labels have {available}; lower points"
                + ("" if replace else _OR_SHARE)
            )


def _floor(value: float) -> int:
    return math.floor(value + _ROUNDING)
