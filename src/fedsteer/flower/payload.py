"""What clients are sent: the model, or a start of their own, settings, and corrections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedsteer.flower.layout import Layout
from fedsteer.flower.options import StrategyOptions
from fedsteer.rules.algorithm import Requests

CORRECTION = "correction"
"""Name of the second array record that SCAFFOLD's clients receive: c - c_i."""


def to_named(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Flower's arrays as NumPy's."""
    return {name: array.numpy() for name, array in record.items()}


def to_record(named: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """NumPy's arrays as Flower's; scalars stay scalars."""
    return ArrayRecord({name: Array(np.asarray(a, order="C")) for name, a in named.items()})


def is_personal(requests: Requests) -> bool:
    """Whether what is sent depends on who receives it."""
    return bool(requests.each) or "control" in requests.shared


def write_content(
    name: str,
    requests: Requests,
    arrays: ArrayRecord,
    config: ConfigRecord,
    layout: Layout,
    rest: Mapping[str, NDArray[Any]],
    options: StrategyOptions,
) -> tuple[ArrayRecord, RecordDict]:
    """The model one client starts from, and the content of its message."""
    own, shared = requests.each.get(name, {}), requests.shared
    if "start" in own:
        arrays = to_record(layout.unflatten(own["start"], rest))
    settings = ConfigRecord(dict(config))
    if "proximal" in shared:
        settings["proximal-mu"] = float(shared["proximal"])
    content = RecordDict({options.arrayrecord_key: arrays, options.configrecord_key: settings})
    if "control" in shared:
        correction = shared["control"] - own.get("control", 0.0)
        nothing = {name: np.zeros_like(array) for name, array in rest.items()}
        content[CORRECTION] = to_record(layout.unflatten(correction, nothing))
    return arrays, content
