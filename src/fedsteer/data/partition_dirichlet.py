"""Label shares drawn from a Dirichlet distribution, from one label per client to uniform.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsteer.data.partition import (
    DIVIDE_ALL,
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

# Shares are equal to all digits beyond this alpha, and products of it may overflow.
MOST_EVEN = 1e9


@dataclass(frozen=True)
class Dirichlet(PartitionOptions):
    """Label shares drawn from a Dirichlet distribution."""

    kind = "dirichlet"
    alpha: float = option(0.3, "smaller is more skewed", above=0, high=MOST_EVEN)

    def draw(self, labels: Indices, rng: np.random.Generator) -> Partition:
        """Each label's points by shares drawn from Dirichlet(alpha).

        All of the data is divided, so sizes are as unequal as the shares. Clients without points
        take one from the largest client.

        With `replace` clients share points: each draws its own label shares from
        Dirichlet(alpha), then `points` distinct points by these shares.
        """
        if self.replace:
            points = self.points_to_share(len(labels))
            return partition_of(self._shared(labels, points, rng), labels)
        if self.points is not None:
            raise ConfigurationError(
                f"{self.points} points for each client cannot be divided by Dirichlet shares: "
                f"{DIVIDE_ALL}, {LET_SHARE}"
            )
        self.check_enough(1, len(labels))
        indices = self._divided(labels, rng)
        sizes = np.array([len(own) for own in indices])
        for empty in np.flatnonzero(sizes == 0):
            largest = int(sizes.argmax())
            indices[largest], indices[empty] = np.split(indices[largest], [-1])
            sizes[largest] -= 1
            sizes[empty] += 1
        return partition_of(indices, labels)

    def _divided(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        owner = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            bounds = np.cumsum(rng.dirichlet(np.full(self.clients, self.alpha))) * len(members)
            # The last bound may fall short of len(members) by a rounding error, so it is left out.
            # The order of clients is random: rounding favours the first one.
            places = np.searchsorted(bounds[:-1], np.arange(len(members)) + 0.5, side="right")
            owner[members] = rng.permutation(self.clients)[places]
        # Shuffled first, so that the last point of a client, which it may lose, has any label.
        order = rng.permutation(len(labels))
        order = order[np.argsort(owner[order], kind="stable")]
        return np.split(order, np.cumsum(np.bincount(owner, minlength=self.clients))[:-1])

    def _shared(self, labels: Indices, points: int, rng: np.random.Generator) -> list[Indices]:
        kinds = np.unique(labels)
        pools = [np.flatnonzero(labels == kind) for kind in kinds]
        room = np.array([len(pool) for pool in pools])
        indices = []
        for share in rng.dirichlet(np.full(len(kinds), self.alpha), size=self.clients):
            quota = np.minimum(rng.multinomial(points, share), room)
            # Other labels fill in for a label that runs out; together they have enough.
            quota += spread_evenly(points - int(quota.sum()), room - quota, quota, rng)
            indices.append(draw_distinct(pools, quota, rng))
        return indices
