"""Label shares drawn from a Dirichlet distribution, from one label per client to uniform.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019.
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
    draw_distinct,
    partition_of,
    spread_evenly,
)
from fedsteer.errors import ConfigurationError
from fedsteer.options import option

# Shares are equal to all digits beyond this alpha, and products of it may overflow.
MOST_EVEN = 1e9


@dataclass(frozen=True)
class DirichletOptions(PartitionOptions):
    """Label shares drawn from a Dirichlet distribution."""

    kind = "dirichlet"
    alpha: float = option(0.3, "smaller is more skewed", above=0, high=MOST_EVEN)

    def divide(self, labels: Indices, seed: int) -> Partition:
        """Points by drawn label shares."""
        return dirichlet(labels, seed=seed, **vars(self))


def dirichlet(
    labels: Indices,
    clients: int = 100,
    alpha: float = 0.3,
    points: int | None = None,
    *,
    seed: int,
    minimum: int = 1,
    replace: bool = False,
) -> Partition:
    """Divide each label's points among the clients by shares drawn from Dirichlet(alpha).

    All of the data is divided, so sizes are as unequal as the shares. Clients with fewer than
    `minimum` points take some from the largest clients.

    With `replace` clients share points: each draws its own label shares from Dirichlet(alpha),
    then `points` distinct points by these shares.
    """
    labels = checked_labels(labels, clients, seed)
    checked_points(points, replace, len(labels))
    if not 0 < alpha <= MOST_EVEN:
        raise ConfigurationError(f"alpha must be above 0 and at most {MOST_EVEN:g}, not {alpha}")
    if minimum < 1:
        raise ConfigurationError(f"minimum must be at least 1, got {minimum}")
    rng = draws.generator(seed, "partition dirichlet")
    if replace and points is not None:
        return partition_of(_shared(labels, clients, alpha, points, rng), labels)
    if points is not None:
        raise ConfigurationError(
            f"{points} points for each client cannot be divided by Dirichlet shares: "
            f"{DIVIDE_ALL}, {LET_SHARE}"
        )
    if clients * minimum > len(labels):
        raise ConfigurationError(
            f"{clients} clients with {minimum} or more points each need {clients * minimum}, "
            f"the data has {len(labels)}; with points, {LET_SHARE}"
        )
    return partition_of(_topped_up(_divided(labels, clients, alpha, rng), minimum), labels)


def _divided(
    labels: Indices, clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        bounds = np.cumsum(rng.dirichlet(np.full(clients, alpha))) * len(members)
        # The last bound may fall short of len(members) by a rounding error, so it is left out.
        # The order of clients is random: rounding favours the first one.
        places = np.searchsorted(bounds[:-1], np.arange(len(members)) + 0.5, side="right")
        owner[members] = rng.permutation(clients)[places]
    # Shuffled first, so that `_topped_up` takes points of any label from the end of a client.
    order = rng.permutation(len(labels))
    order = order[np.argsort(owner[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def _topped_up(indices: list[Indices], minimum: int) -> list[Indices]:
    sizes = np.array([len(own) for own in indices])
    for poor in np.flatnonzero(sizes < minimum):
        while sizes[poor] < minimum:
            rich = int(sizes.argmax())
            indices[poor] = np.append(indices[poor], indices[rich][-1])
            indices[rich] = indices[rich][:-1]
            sizes[poor] += 1
            sizes[rich] -= 1
    return indices


def _shared(
    labels: Indices, clients: int, alpha: float, points: int, rng: np.random.Generator
) -> list[Indices]:
    kinds = np.unique(labels)
    pools = [np.flatnonzero(labels == kind) for kind in kinds]
    room = np.array([len(pool) for pool in pools])
    indices = []
    for share in rng.dirichlet(np.full(len(kinds), alpha), size=clients):
        quota = np.minimum(rng.multinomial(points, share), room)
        # Other labels fill in for a label that runs out; together they have enough.
        excess = spread_evenly(points - int(quota.sum()), room - quota, quota, rng)
        assert excess is not None
        indices.append(draw_distinct(pools, range(len(kinds)), quota + excess, rng))
    return indices
