"""Data sorted by label and cut into shards; every client gets a few of them.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.
"""

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
from fedsteer.options import option


@dataclass(frozen=True)
class ShardsOptions(PartitionOptions):
    """Data sorted by label and cut into shards; every client gets a few of them."""

    kind = "shards"
    shards_per_client: int = option(2, "shards of points sorted by label", low=1)

    def divide(self, labels: Indices, seed: int) -> Partition:
        """Shards of the data."""
        return shards(labels, seed=seed, **vars(self))


def shards(
    labels: Indices,
    clients: int = 100,
    shards_per_client: int = 2,
    points: int | None = None,
    *,
    seed: int,
    replace: bool = False,
) -> Partition:
    """`shards_per_client` shards per client, of `points` points together, or of all the data.

    Every shard goes to one client. With `replace` several clients may get the same shard; a
    client's own shards are distinct.
    """
    labels = checked_labels(labels, clients, seed)
    checked_points(points, replace, len(labels))
    if shards_per_client < 1:
        raise ConfigurationError(f"shards_per_client must be at least 1, got {shards_per_client}")
    if points is not None and points % shards_per_client:
        raise ConfigurationError(
            f"{points} points cannot be cut into {shards_per_client} equal shards"
        )
    wanted = clients * shards_per_client
    size = points // shards_per_client if points is not None else None
    cuts = wanted if size is None else len(labels) // size
    if cuts > len(labels) or cuts < (shards_per_client if replace else wanted):
        instead = "" if points is None else f"{DIVIDE_ALL}, "
        raise ConfigurationError(
            f"{clients} clients with {shards_per_client} shards of {size or 1} points or more "
            f"cannot be cut from {len(labels)} points"
            + ("" if replace else f"; {instead}{LET_SHARE}")
        )
    rng = draws.generator(seed, "partition shards")
    # Shuffle before the stable sort: the shards of a label then differ from seed to seed.
    order = rng.permutation(len(labels))
    by_label = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(by_label, cuts)
    if size is not None:
        pieces = [piece[:size] for piece in pieces]
    if replace:
        hands = [rng.choice(cuts, shards_per_client, replace=False) for _ in range(clients)]
    else:
        hands = list(rng.permutation(cuts)[:wanted].reshape(clients, shards_per_client))
    return partition_of([np.concatenate([pieces[s] for s in hand]) for hand in hands], labels)
