"""The real data sets, for those who have them: point FEDSTEER_DATA to their folder."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedsteer.data import LabelGroups, check, load

EXPECTED = {
    "fashion-mnist": (6000, 1000),
    "mnist": (None, None),  # its classes differ in size
    "cifar-10": (5000, 1000),
    "emnist-balanced": (2400, 400),
    "emnist-bymerge": (786, 131),
}


@pytest.mark.skipif("FEDSTEER_DATA" not in os.environ, reason="FEDSTEER_DATA is not set")
@pytest.mark.parametrize("name", EXPECTED)
def test_published_files(name: str) -> None:
    report = check(name)
    if report.state == "missing":
        pytest.skip(report.problem)
    assert report.state == "ok", report.problem
    train, test = EXPECTED[name]
    assert report.dataset is not None
    if train is not None:
        assert set(np.bincount(report.dataset.train_labels)) == {train}
        assert set(np.bincount(report.dataset.test_labels)) == {test}


@pytest.mark.skipif("FEDSTEER_DATA" not in os.environ, reason="FEDSTEER_DATA is not set")
def test_the_papers_partition_of_emnist() -> None:
    if check("emnist-bymerge").state != "ok":
        pytest.skip("emnist-bymerge is not here")
    dataset = load("emnist-bymerge")
    partition = LabelGroups(gamma=0.9, points=100).divide(dataset.train_labels, 0)
    assert sorted(set(partition.sizes.tolist())) == [55, 500]
    held = (partition.holds > 0).sum(axis=1)
    assert set(held.tolist()) == {23, 24}
    images, _ = dataset.train()
    # Measured independently on the whole ByMerge test split: mean 0.1736, deviation 0.3317.
    assert abs(images.mean() - 0.1736) < 0.005 and abs(images.std() - 0.3317) < 0.005
