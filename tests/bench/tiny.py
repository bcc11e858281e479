"""Workloads that take milliseconds."""

from __future__ import annotations

from dataclasses import replace

from fedsteer.bench.workloads import WORKLOADS, Workload


def tiny(workload: Workload) -> Workload:
    """The same network on few points; the last batch of an epoch is smaller."""
    return replace(workload, clients=5, points=10, cohort=2, batch=4, epochs=2)


TINY = {key: tiny(workload) for key, workload in WORKLOADS.items()}
