"""What changes over the rounds: accuracy, variance of the update, the norm bound.

Each function takes the runs of one rule and gives JSON-able numbers for the page, rounded and
thinned to what an eye can tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsteer.records import Run
from fedsteer.report.entries import look, number
from fedsteer.report.statistics import estimate

CURVE_POINTS = 200
VARIANCE_POINTS = 75
EVENT_POINTS = 300


def rounded(value: float | None, digits: int = 4) -> float | int | None:
    """`digits` significant digits, without a needless ".0"."""
    if value is None:
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) else short


def thinned(count: int, most: int) -> list[int]:
    """At most `most` indices spread evenly over range(count), first and last among them."""
    if count <= most:
        return list(range(count))
    return [int(index) for index in np.unique(np.linspace(0, count - 1, most).round())]


def accuracy_curve(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Mean and interval over seeds of the evaluated rounds, with three choices of x axis.

    train   training rounds            mean, half    accuracy
    all     rounds, warm-up included   groups        {name: {mean, half}}
    sent    bytes both ways so far
    """
    evaluated: dict[int, list[tuple[dict[str, Any], float]]] = {}
    for run in runs:
        sent = 0.0
        for row in run.rounds:
            sent += (number(row, "bytes_up") or 0.0) + (number(row, "bytes_down") or 0.0)
            moment = number(row, "training_round") or number(row, "round")
            if number(row, "accuracy") is None or look(row, "phase") == "warm-up" or not moment:
                continue
            evaluated.setdefault(int(moment), []).append((row, sent))
    if not evaluated:
        return None
    order = sorted(evaluated)
    kept = [order[index] for index in thinned(len(order), CURVE_POINTS)]
    names = dict.fromkeys(
        name
        for moment in kept
        for row, _ in evaluated[moment]
        for name in look(row, "group_accuracy") or ()
    )
    curve: dict[str, Any] = {
        "train": kept,
        "all": [_mean([number(row, "round") for row, _ in evaluated[at]]) for at in kept],
        "sent": [_mean([sent for _, sent in evaluated[at]]) for at in kept],
        **_band([[number(row, "accuracy") for row, _ in evaluated[at]] for at in kept]),
        "groups": {
            name: _band(
                [[number(row, "group_accuracy", name) for row, _ in evaluated[at]] for at in kept]
            )
            for name in names
        },
    }
    if not any(curve["sent"]):
        del curve["sent"]
    return curve


def variance_curve(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Median variance of the update over seeds and neighbouring rounds."""
    pairs = [
        (number(row, "training_round") or number(row, "round"), number(row, "variance"))
        for run in runs
        for row in run.rounds
        if look(row, "phase") != "warm-up"
    ]
    known = [(moment, value) for moment, value in pairs if moment and value and value > 0]
    if not known:
        return None
    moments, values = np.array(known).T
    width = max(1, int(np.ceil(moments.max() / VARIANCE_POINTS)))
    bins = (moments - 1) // width
    x, y = [], []
    for index in np.unique(bins):
        inside = bins == index
        x.append(rounded(float(moments[inside].mean())))
        y.append(rounded(float(np.median(values[inside])), 3))
    return {"x": x, "y": y}


def bound_events(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Rounds in which the norm bound shortened the update, and by how much."""
    acted: list[tuple[int, float]] = []
    rounds = 0
    for run in runs:
        for row in run.rounds:
            factor, moment = number(row, "bound_factor"), number(row, "round")
            if factor is None or moment is None:
                continue
            rounds += 1
            if factor < 1:
                acted.append((int(moment), factor))
    if not acted:
        return None
    acted.sort()
    kept = [acted[index] for index in thinned(len(acted), EVENT_POINTS)]
    return {
        "x": [moment for moment, _ in kept],
        "y": [rounded(factor, 3) for _, factor in kept],
        "acted": len(acted),
        "rounds": rounds,
    }


def _band(samples: list[list[float | None]]) -> dict[str, list[float | int | None]]:
    found = [estimate(values) for values in samples]
    return {
        "mean": [None if one is None else rounded(one.mean) for one in found],
        "half": [None if one is None else rounded(one.drawn, 3) for one in found],
    }


def _mean(values: Sequence[float | None]) -> float | int | None:
    found = estimate(values)
    return None if found is None else rounded(found.mean)
