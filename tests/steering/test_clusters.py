"""k-means from inner products alone, against distances between the vectors themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, make_rule
from fedsteer.rules.cluster_fedvarp import k_means


def blobs(seed: int, *, per_blob: int = 6, apart: float = 10.0) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    centres = apart * draw.standard_normal((4, 20))
    truth = np.repeat(np.arange(4), per_blob)
    return centres[truth] + draw.standard_normal((len(truth), 20)), truth


def labelled(points: Any, count: int, *, seed: int = 0, weights: Any = None, **options: Any) -> Any:
    weights = np.ones(len(points)) if weights is None else weights
    return k_means(points @ points.T, weights, count, np.random.default_rng(seed), **options)


@pytest.mark.parametrize("seed", range(5))
def test_clear_clusters_are_found(seed: int) -> None:
    points, truth = blobs(seed, apart=30.0)
    labels = labelled(points, 4, seed=seed)
    together = labels[:, None] == labels
    assert (together == (truth[:, None] == truth)).all()


@pytest.mark.parametrize("seed", range(5))
def test_every_client_ends_with_the_nearest_weighted_mean(seed: int) -> None:
    """The fixed point of Lloyd's iterations, checked in the space of the vectors."""
    draw = np.random.default_rng(seed)
    points, weights = draw.standard_normal((30, 6)), draw.uniform(0.1, 5, 30)
    labels = labelled(points, 5, seed=seed, weights=weights)
    assert set(labels.tolist()) == set(range(5))
    means = np.array(
        [np.average(points[labels == c], axis=0, weights=weights[labels == c]) for c in range(5)]
    )
    distances = np.sum((points[:, None] - means) ** 2, axis=2)
    nearest = distances[np.arange(30), labels]
    assert (nearest <= distances.min(axis=1) + 1e-9).all()


def test_weights_draw_the_means() -> None:
    """With nearly all weight on three points, each of them gets a cluster for itself."""
    points = np.array([[0.0], [1.0], [2.0], [3.0], [4.0]])
    for seed in range(10):
        labels = labelled(points, 3, seed=seed, weights=np.array([1e9, 1, 1e9, 1, 1e9]))
        assert len({labels[0], labels[2], labels[4]}) == 3


def test_rounds_never_raise_the_cost() -> None:
    points, _ = blobs(1, apart=1.0)

    def cost(labels: Any) -> float:
        return sum(
            float(np.sum((points[labels == c] - points[labels == c].mean(axis=0)) ** 2))
            for c in np.unique(labels)
        )

    costs = [cost(labelled(points, 4, rounds=rounds)) for rounds in range(1, 12)]
    assert (np.diff(costs) <= 1e-9).all()


@pytest.mark.parametrize(
    ("points", "count"),
    [
        (np.ones((1, 3)), 4),
        (np.ones((5, 3)), 3),
        (np.zeros((5, 3)), 5),
        (np.zeros((4, 3)), 1),
        (np.array([[1.0], [1.0], [1.0], [5.0]]), 3),
    ],
)
def test_fewer_distinct_updates_than_clusters(points: Any, count: int) -> None:
    for seed in range(5):
        labels = labelled(points, count, seed=seed)
        assert labels.shape == (len(points),) and labels.dtype == np.int64
        assert labels.min() >= 0 and labels.max() < min(count, len(points))


def test_the_draw_decides_everything() -> None:
    points, _ = blobs(2, apart=0.5)
    assert (labelled(points, 4, seed=3) == labelled(points, 4, seed=3)).all()


def test_founders_of_a_round_are_joined_by_clients_that_resemble_them() -> None:
    """Twelve clients in three groups, all new at once, three clusters."""
    draw = np.random.default_rng(0)
    groups = np.array([0, 1, 2, 2, 1, 0, 1, 0, 2, 0, 1, 2])
    updates = 5 * np.eye(6)[groups] + 0.1 * draw.standard_normal((12, 6))
    rule = make_rule("cluster_fedvarp", select="online", cluster_count=3)
    state = rule.init(6, np.ones(12))
    state = rule.step(
        state, Round(number=1, clients=range(12), updates=updates, probabilities=np.full(12, 0.5))
    ).state
    own = state.memory.own  # type: ignore[attr-defined]
    assert own.member_of[np.arange(12)].tolist() == groups.tolist()
