"""The work that every side gets."""

from __future__ import annotations

import numpy as np
import pytest

from fedsteer.bench.workloads import Workload, make_work
from tests.bench.tiny import TINY


@pytest.mark.parametrize("workload", TINY.values(), ids=list(TINY))
def test_work_is_what_the_workload_says(workload: Workload) -> None:
    work = make_work(workload)
    assert len(work.pixels) == len(work.labels) == workload.clients * workload.points
    assert work.images.dtype == np.float32 and 0 <= work.images.min() < work.images.max() <= 1
    assert work.labels.min() >= 0 and work.labels.max() < workload.classes
    assert (np.diff(work.cohorts, axis=1) > 0).all() and work.cohorts.max() < workload.clients
    assert work.cohort(0) != work.cohort(1) or work.cohort(0) != work.cohort(2)
    assert len(work.initial) == workload.network().dim
    assert not np.array_equal(work.labels, make_work(workload, seed=1).labels)
