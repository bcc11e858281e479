"""Every client's points are a uniform sample."""

from dataclasses import dataclass

import numpy as np

from fedsteer.data.partition import Indices, Partition, PartitionOptions, partition_of


@dataclass(frozen=True)
class Iid(PartitionOptions):
    """Every client's points are a uniform sample."""

    kind = "iid"

    def draw(self, labels: Indices, rng: np.random.Generator) -> Partition:
        """`points` random points per client, or all of the data in equal parts."""
        if self.replace:
            points = self.points_to_share(len(labels))
            draws = [rng.choice(len(labels), points, replace=False) for _ in range(self.clients)]
            return partition_of(draws, labels)
        self.check_enough(self.points or 1, len(labels))
        order = rng.permutation(len(labels))
        taken = order if self.points is None else order[: self.clients * self.points]
        return partition_of(np.array_split(taken, self.clients), labels)
