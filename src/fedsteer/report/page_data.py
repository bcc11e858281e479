"""The numbers of the page, for each rule in each experiment, as JSON-able data.

A rule of several experiments has one name, look and button; you choose the experiment.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fedsteer.records import Run
from fedsteer.records.files import number, rounded
from fedsteer.report import curves, visits
from fedsteer.report.entries import FULL, Entry
from fedsteer.report.styles import DARK, LIGHT, styles
from fedsteer.report.summary import Summary

WATCHED = 12
COORDINATE_ROUNDS = 150
COORDINATES = 64
CLASSES = 200
LEVELS = 999  # coordinates are drawn in this many steps either side of zero


def page_data(summary: Summary, seen: Sequence[Sequence[visits.Visits]]) -> dict[str, Any]:
    """All numbers of the plots; `seen` has the visits of the shown runs of each row.

    rules         name and look of each rule
    experiments   their names
    measure       what is drawn over training: accuracy, or the loss if there is nothing else
    entries       which rule in which experiment each row is, as indices into these two lists
    panels        names of the plots of each section; [] if it has nothing to show
    others        one item per row, None if it has no data; equal `holds` and `rasters` are kept
                  only once
    """
    entries, experiments = summary.rows, summary.experiments
    looks = styles(entries)
    rules = list(dict.fromkeys(entry.label for entry in entries))
    measure = curves.measured(run for entry in entries for run in entry.shown)
    # All rules meet the same draws, so most rasters are equal, and often those of all experiments.
    rasters, raster = _once([visits.raster(entry.shown[0]) for entry in entries])
    pictures, holds = _once([_held(summary, name) for name in experiments])
    plots: dict[str, list[Any]] = {
        "accuracy": [curves.accuracy_curve(entry.shown, measure) for entry in entries],
        "residual": [visits.residuals(one) for one in seen],
        "staleness": [visits.staleness_shares(one) for one in seen],
        **{
            name: [curves.median_curves(entry.shown, name) for entry in entries]
            for name in curves.MEDIANS
        },
        "cost": [_cost(entry) for entry in entries],
        "coordinates": [coordinates(entry.shown[0]) for entry in entries],
        "holds": holds,
        "events": [curves.bound_events(entry.shown) for entry in entries],
        "raster": raster,
    }
    panels = {key: [""] * any(one is not None for one in plots[key]) for key in plots}
    groups = (name for curve in plots["accuracy"] if curve for name in curve["groups"])
    panels["groups"] = list(dict.fromkeys(groups))
    for key in ("staleness", *curves.MEDIANS):
        panels[key] = list(dict.fromkeys(name for parts in plots[key] for name in parts or ()))
    return {
        "rules": [{"name": name, **asdict(looks[name])} for name in rules],
        "palettes": {"light": LIGHT, "dark": DARK},
        "experiments": [name or "unnamed" for name in experiments],
        "entries": [
            {"rule": rules.index(one.label), "experiment": experiments.index(one.experiment)}
            for one in entries
        ],
        "panels": panels,
        "measure": measure,
        "kinds": visits.EVENTS,
        "rasters": rasters,
        "pictures": pictures,
        "unused": [visits.unused_updates(one) for one in seen],
        **plots,
    }


def coordinates(run: Run) -> dict[str, Any] | None:
    """Coordinates of watched clients by training round: per client, k rows of whole steps."""
    if (found := curves.watched(run)) is None:
        return None
    names, values = found
    kept = curves.thinned(range(len(values)), COORDINATE_ROUNDS)
    pictures = []
    for client in curves.thinned(range(values.shape[1]), WATCHED):
        picture = values[kept, client, :COORDINATES].T  # (k, rounds)
        largest = float(np.max(np.abs(picture), where=np.isfinite(picture), initial=0.0))
        if not largest:
            continue  # never visited, so far
        scale = float(f"{largest / LEVELS:.6g}")
        steps = [
            [round(value) if np.isfinite(value) else None for value in line]
            for line in (picture / scale).tolist()
        ]
        pictures.append({"client": names[client], "scale": scale, "rows": steps})
    if not pictures:
        return None
    return {"rounds": [at + 1 for at in kept], "watched": pictures}


def _cost(row: Entry) -> dict[str, Any] | None:
    """Final accuracy and what it took; None without an accuracy or any cost."""
    costs: dict[str, Any] = {}
    for name, keys in (("memory", ["server_bytes"]), ("sent", ["bytes_up", "bytes_down"])):
        if known := [found.mean for key in keys if (found := row.estimates[key]) is not None]:
            costs[name] = rounded(sum(known))
    if row.accuracy is None or not costs:
        return None
    return costs | {"mean": rounded(row.accuracy.mean), "half": rounded(row.accuracy.drawn, 3)}


def _once(items: Sequence[Any]) -> tuple[list[Any], list[int | None]]:
    """The different ones, and the place of each item among them; None stays None."""
    found = [one for at, one in enumerate(items) if one is not None and one not in items[:at]]
    return found, [None if one is None else found.index(one) for one in items]


def _held(summary: Summary, experiment: str) -> dict[str, Any] | None:
    """Who holds what in an experiment: seeds differ in detail, not in kind, so one run says it."""
    entries = [entry for entry in summary.rows if entry.experiment == experiment]
    entries.sort(key=lambda entry: entry.rule == FULL)  # last: presence orders the clients
    return next(filter(None, (_holds(entry.shown[0]) for entry in entries)), None)


def _holds(run: Run) -> dict[str, Any] | None:
    """Data points of each client by class, clients in the order of the raster."""
    holds, groups = (visits.of_clients(run.manifest, key) for key in ("holds", "data_group"))
    if not holds or not all(isinstance(row, list) for row in holds.values()):
        return None
    classes = min(max(map(len, holds.values())), CLASSES)
    order = [client for client in visits.client_order(run.manifest) if client in holds]
    kept = curves.thinned(order, visits.RASTER_CLIENTS)
    rows = [[int(number(value) or 0) for value in holds[client][:classes]] for client in kept]
    if not any(map(any, rows)):
        return None
    return {
        "clients": kept,
        "rows": rows,
        "classes": classes,
        "groups": [str(groups[client]) for client in kept] if len(groups) >= len(holds) else None,
        "of": len(order),
    }
