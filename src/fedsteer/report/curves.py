"""Curves over the rounds: accuracy, variance and length of the update, the norm bound.

Each function takes the runs of one rule and gives JSON-able numbers for the page, rounded and
thinned to what an eye can tell apart.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsteer.records import Run
from fedsteer.records.files import look, number, rounded, table
from fedsteer.report.statistics import estimate

Item = TypeVar("Item")
CURVE_POINTS = 200
MEDIAN_POINTS = 75
EVENT_POINTS = 300
MEDIANS = {
    "variance": {"": "variance"},
    "pace": {
        "factor of the step": "step_factor",
        "alignment": "alignment",
        "trust in estimates": "trust",
    },
    "privacy": {"epsilon": "epsilon"},
    "answers": {"asked": "asked", "answered": "answered", "used": "used"},
}
"""Plot -> its panels -> the column that each shows; see `median_curves`."""
IDLE = {"variance": 0, "step_factor": 1, "trust": 1}  # if there is nothing to see


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` items spread evenly over all, first and last among them."""
    places = np.linspace(0, len(items) - 1, min(len(items), most)).round()
    return [items[int(place)] for place in places]


def watched(run: Run) -> tuple[list[str], NDArray[np.float64]] | None:
    """Names of the watched clients, and their coordinates of the shape (rounds, clients, k)."""
    values, clients = run.arrays.get("coordinates"), run.arrays.get("watched")
    if values is None or values.ndim != 3 or not values.size:
        return None
    if clients is None or clients.shape != values.shape[1:2]:
        clients = np.arange(values.shape[1])
    return [str(client) for client in clients.tolist()], values.astype(np.float64)


def measured(runs: Iterable[Run]) -> str:
    """What curves over training show: "loss" if no run knows an accuracy."""
    known = {
        name for run in runs for row in run.rounds for name in ("accuracy", "loss") if name in row
    }
    return "loss" if known == {"loss"} else "accuracy"


def accuracy_curve(runs: Sequence[Run], measure: str = "accuracy") -> dict[str, Any] | None:
    """Mean and interval over seeds of the evaluated rounds, with three choices of x axis.

    train   training rounds            mean, half    accuracy or loss, see `measured`
    all     rounds, warm-up included   groups        {name: {mean, half}}
    sent    bytes both ways so far
    """
    evaluated: dict[int, list[dict[str, Any]]] = {}
    for run in runs:
        sent = 0.0
        for row in run.rounds:
            sent += (number(row, "bytes_up") or 0.0) + (number(row, "bytes_down") or 0.0)
            moment = training_round(row)
            value = number(row, measure)
            if moment and value is not None and (measure == "loss" or 0 <= value <= 1):
                evaluated.setdefault(int(moment), []).append(row | {"sent": sent})
    if not evaluated:
        return None
    kept = thinned(sorted(evaluated), CURVE_POINTS)
    rows = [evaluated[moment] for moment in kept]
    names = dict.fromkeys(
        name for seeds in rows for row in seeds for name in table(row, "group_accuracy")
    )
    sent_so_far = _band(rows, "sent")["mean"]
    return {
        "train": kept,
        "all": _band(rows, "round")["mean"],
        **({"sent": sent_so_far} if any(sent_so_far) else {}),
        **_band(rows, measure),
        "groups": {name: _band(rows, "group_accuracy", name) for name in names},
    }


def median_curves(runs: Sequence[Run], plot: str) -> dict[str, Any] | None:
    """Medians over seeds and neighbouring rounds; a panel with nothing to see is left out."""
    rows = [_with_answers(row) for run in runs for row in run.rounds]
    found = {}
    for panel, column in MEDIANS[plot].items():
        known = [
            (moment, value)
            for row in rows
            if (moment := training_round(row)) and (value := number(row, column)) is not None
        ]
        if all(value == IDLE.get(column) for _, value in known):
            continue
        moments, values = np.array(known).T
        width = max(1, int(np.ceil(moments.max() / MEDIAN_POINTS)))
        bins = (moments - 1) // width
        inside = [bins == index for index in np.unique(bins)]
        found[panel] = {
            "x": [rounded(float(moments[one].mean())) for one in inside],
            "y": [rounded(float(np.median(values[one])), 3) for one in inside],
        }
    return found or None


def _with_answers(row: dict[str, Any]) -> dict[str, Any]:
    """The row and how many clients answered and were used; only Flower's records say so."""
    asked, failed = number(row, "asked"), number(row, "failed")
    if asked is None or failed is None:
        return row
    return row | {"answered": asked - failed, "used": row.get("active")}


def bound_events(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Rounds in which the norm bound shortened the update, and by how much."""
    pairs = [
        (int(moment), factor)
        for run in runs
        for row in run.rounds
        if (factor := number(row, "bound_factor")) is not None
        and (moment := number(row, "round")) is not None
    ]
    acted = sorted((moment, factor) for moment, factor in pairs if factor < 1)
    if not acted:
        return None
    moments, factors = zip(*thinned(acted, EVENT_POINTS), strict=True)
    return {
        "x": moments,
        "y": [rounded(factor, 3) for factor in factors],
        "acted": len(acted),
        "rounds": len(pairs),
    }


def training_round(row: dict[str, Any]) -> float | None:
    """None in the warm-up; records of other programs may only number all rounds."""
    if look(row, "phase") == "warm-up":
        return None
    return number(row, "training_round") or number(row, "round")


def _band(rows: Iterable[Sequence[Any]], *keys: str) -> dict[str, list[Any]]:
    """Mean and half interval of a number of every evaluated round."""
    found = [estimate(number(row, *keys) for row in seeds) for seeds in rows]
    return {
        "mean": [None if one is None else rounded(one.mean) for one in found],
        "half": [None if one is None else rounded(one.drawn, 3) for one in found],
    }
