"""The work that every side gets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsteer.bench.workloads import Workload, make_work
from tests.bench.tiny import TINY


@pytest.mark.parametrize("workload", TINY.values(), ids=list(TINY))
def test_work_is_what_the_workload_says(workload: Workload) -> None:
    work = make_work(workload)
    owned = [len(work.labels[work.own(client)]) for client in range(workload.clients)]
    assert owned == [workload.points] * workload.clients
    assert work.images.shape == (len(work.labels), *workload.shape)
    assert work.images.dtype == np.float32 and 0 <= work.images.min() < work.images.max() <= 1
    assert work.labels.min() >= 0 and work.labels.max() < workload.classes
    assert (np.diff(work.cohorts, axis=1) > 0).all() and work.cohorts.max() < workload.clients
    assert work.cohort(0) != work.cohort(1) or work.cohort(0) != work.cohort(2)
    assert len(work.initial) == workload.network().dim


def test_clients_share_points_beyond_ten_thousand() -> None:
    many = replace(TINY["a"], clients=250, points=50)
    work = make_work(many)
    assert len(work.labels) == 10_000
    assert work.own(199) == slice(9_950, 10_000) and work.own(200) == work.own(0)
