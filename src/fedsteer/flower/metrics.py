"""Numbers in metric records: those that clients report, and those that the rule reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict

from fedsteer.flower.identity import REPORTED_KEYS
from fedsteer.steering.rounds import LARGEST_COUNT

COUNTS = ("active", "fresh", "dropped", "failed", "columns")
SIZES = ("variance", "bound_factor", "delta_norm", "weight_sum")
"""Columns of rounds.jsonl that are also train metrics."""


def number_in(content: RecordDict, key: str) -> float | None:
    """The number that a reply reports under this key, if there is one."""
    for record in content.metric_records.values():
        value = record.get(key)
        if isinstance(value, (int, float)):
            return float(value)
    return None


def data_points(content: RecordDict, key: str) -> float | None:
    """The client's number of data points, if it reports a usable one."""
    size = number_in(content, key)
    return size if size is not None and 0 < size <= LARGEST_COUNT else None


def weighted_metrics(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Means over the clients' metrics, weighted by data points, as Flower's FedAvg takes them.

    A key that is missing from one reply is left out; it does not fail the round.
    """
    weights = np.array([number_in(content, weighted_by_key) or 0.0 for content in contents])
    shares = weights / (weights.sum() or 1.0)
    tables = [
        {key: value for record in content.metric_records.values() for key, value in record.items()}
        for content in contents
    ]
    result = MetricRecord()
    for key in tables[0]:
        if key == weighted_by_key or key in REPORTED_KEYS or any(key not in t for t in tables):
            continue
        values = [np.asarray(table[key], np.float64) for table in tables]
        if len({value.shape for value in values}) == 1:
            result[key] = np.tensordot(shares, np.stack(values), axes=1).tolist()
    return result


def rule_metrics(row: Mapping[str, Any]) -> dict[str, int | float]:
    """What the rule reports about a round, from the round's row in the records."""
    return {f"fedsteer-{column.replace('_', '-')}": row[column] for column in (*COUNTS, *SIZES)}


def accuracy_and_loss(metrics: Mapping[str, float]) -> dict[str, float]:
    """Accuracy and loss, whatever exactly they are called (eval_acc, test-accuracy, ...)."""
    found = {}
    for key, part in (("accuracy", "acc"), ("loss", "loss")):
        names = [name for name in metrics if part in name.lower()]
        if names:
            found[key] = float(metrics[key if key in names else names[0]])
    return found
