"""Data sorted by label and cut into shards; every client gets a few of them.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsteer.data.partition import Indices, Partition, PartitionOptions, partition_of
from fedsteer.errors import ConfigurationError
from fedsteer.options import option


@dataclass(frozen=True)
class Shards(PartitionOptions):
    """Data sorted by label and cut into shards; every client gets a few of them."""

    kind = "shards"
    shards_per_client: int = option(2, "shards of points sorted by label", low=1)

    def draw(self, labels: Indices, rng: np.random.Generator) -> Partition:
        """Shards of `points` points per client together, or of all the data.

        Every shard goes to one client. With `replace` several clients may get the same shard; a
        client's own shards are distinct.
        """
        clients, each = self.clients, self.shards_per_client
        points = self.points_to_share(len(labels)) if self.replace else self.points
        if not self.replace:
            self.check_enough(points or each, len(labels))
        if points is not None and points % each:
            raise ConfigurationError(f"{points} points cannot be cut into {each} equal shards")
        # Shuffle before the stable sort: the shards of a label then differ from seed to seed.
        order = rng.permutation(len(labels))
        by_label = order[np.argsort(labels[order], kind="stable")]
        if points is None:
            pieces = np.array_split(by_label, clients * each)
        else:
            size = points // each
            pieces = [piece[:size] for piece in np.array_split(by_label, len(labels) // size)]
        if self.replace:
            hands = [rng.choice(len(pieces), each, replace=False) for _ in range(clients)]
        else:
            hands = list(rng.permutation(len(pieces))[: clients * each].reshape(clients, each))
        return partition_of([np.concatenate([pieces[s] for s in hand]) for hand in hands], labels)
