"""Means of the metrics that clients report, as Flower's FedAvg takes them, of what is possible.

A metric is a claim. It counts if it is finite, below 10^15 and, for an accuracy (any name with
"acc" in it), a share from 0 to 1. Weights are the claimed data points, at most ten times the median
of the round. A metric is averaged over those who report it, if they are more than half, so that no
single client removes one from the records or adds one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray

from fedsteer.flower.identity import REPORTED_KEYS
from fedsteer.steering.rounds import LARGEST_COUNT
from fedsteer.steering.usual import middle

TIMES = 10.0
LARGEST_FLOAT = np.finfo(np.float64).max
SHOWN = 80  # letters of an impossible value


def number_in(records: Mapping[str, Mapping[str, Any]], key: str) -> float | None:
    """The number that one of these records has under this key, if there is one."""
    for record in records.values():
        value = record.get(key)
        if isinstance(value, (int, float)):
            return float(floats_of(value))
    return None


def floats_of(value: Any) -> NDArray[np.float64]:
    """A number or a list of numbers; whole ones that no float can hold become the largest float."""
    return np.asarray(np.clip(value, -LARGEST_FLOAT, LARGEST_FLOAT), np.float64)


def data_points(content: RecordDict, key: str) -> float | None:
    """The client's number of data points, if it reports a usable one."""
    size = number_in(content.metric_records, key)
    return size if size is not None and 0 < size <= LARGEST_COUNT else None


def is_accuracy(name: str) -> bool:
    """Whether a metric of this name is one."""
    return "acc" in name.lower()


def is_possible(name: str, value: Any) -> bool:
    """Whether a metric, a number or a list of numbers, can have this value."""
    low, high = (0.0, 1.0) if is_accuracy(name) else (-LARGEST_COUNT, LARGEST_COUNT)
    array = floats_of(value)
    return bool(((array >= low) & (array <= high)).all())  # nan is neither


def weighted_metrics(
    contents: Sequence[RecordDict], weighted_by_key: str
) -> tuple[MetricRecord, dict[int, str]]:
    """The means, and the first impossible claim of each client that made one, by position."""
    tables: list[dict[str, NDArray[np.float64]]] = []
    reported: Counter[str] = Counter()
    odd: dict[int, str] = {}
    for place, content in enumerate(contents):
        table: dict[str, NDArray[np.float64]] = {}
        for record in content.metric_records.values():
            table |= {k: floats_of(record[k]) for k in record if k not in REPORTED_KEYS}
        if data_points(content, weighted_by_key) is None:
            odd[place] = _shown(weighted_by_key, table.get(weighted_by_key))
        table.pop(weighted_by_key, None)
        reported.update(table.keys())
        for name in [name for name, value in table.items() if not is_possible(name, value)]:
            odd.setdefault(place, _shown(name, table.pop(name)))
            table.pop(name, None)
        tables.append(table)
    points = np.array([data_points(content, weighted_by_key) or 0.0 for content in contents])
    usual = middle(points)
    weights = np.minimum(points, TIMES * usual) if usual else points
    result = MetricRecord()
    for name, count in reported.items():
        having = [place for place, table in enumerate(tables) if name in table]
        if 2 * count <= len(contents) or not having:
            continue
        shapes = Counter(tables[place][name].shape for place in having)
        having = [p for p in having if tables[p][name].shape == shapes.most_common(1)[0][0]]
        if total := weights[having].sum():
            values = np.stack([tables[place][name] for place in having])
            result[name] = np.tensordot(weights[having] / total, values, axes=1).tolist()
    return result, odd


def _shown(name: str, value: object) -> str:
    return f"{name[:SHOWN]} {str(value)[:SHOWN]}"
