"""Heat maps: which client holds what, and the coordinates of watched clients."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsteer.records import Run
from fedsteer.report.curves import thinned
from fedsteer.report.entries import look, number
from fedsteer.report.visits import RASTER_CLIENTS, client_order

WATCHED = 12
COORDINATE_ROUNDS = 150
COORDINATES = 64
CLASSES = 200
LEVELS = 999  # coordinates are drawn in this many steps either side of zero


def holdings(run: Run) -> dict[str, Any] | None:
    """Data points of each client by class, clients in the order of the raster."""
    table = look(run.manifest, "clients", "holds")
    if not isinstance(table, list) or not table or not all(isinstance(row, list) for row in table):
        return None
    classes = min(max(map(len, table)), CLASSES)
    order = [client for client in client_order(run.manifest) if int(client) < len(table)]
    kept = [order[index] for index in thinned(len(order), RASTER_CLIENTS)]
    groups = look(run.manifest, "clients", "data_group")
    rows = [[_count(value) for value in table[int(client)][:classes]] for client in kept]
    if not any(map(any, rows)):
        return None
    return {
        "clients": kept,
        "rows": rows,
        "classes": classes,
        "groups": [str(groups[int(client)]) for client in kept]
        if isinstance(groups, list) and len(groups) >= len(table)
        else None,
        "of": len(order),
    }


def coordinates(run: Run) -> dict[str, Any] | None:
    """Coordinates of watched clients by training round: per client, k rows of whole steps."""
    values = run.arrays.get("coordinates")
    if values is None or values.ndim != 3 or not values.size:
        return None
    rounds = [
        number(row, "training_round") or number(row, "round")
        for row in run.rounds
        if look(row, "phase") != "warm-up"  # before training there are no coordinates
    ]
    if len(rounds) != len(values) or None in rounds:
        rounds = [float(moment) for moment in range(1, len(values) + 1)]
    watched = run.arrays.get("watched")
    names = (
        [str(client) for client in watched.tolist()]
        if watched is not None and watched.shape == (values.shape[1],)
        else [str(client) for client in range(values.shape[1])]
    )
    kept = thinned(len(values), COORDINATE_ROUNDS)
    shown = thinned(values.shape[1], WATCHED)
    pictures = []
    for client in shown:
        picture = values[kept, client, :COORDINATES].astype(float).T  # (k, rounds)
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
    return {"rounds": [int(rounds[index] or 0) for index in kept], "watched": pictures}


def _count(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and value == value else 0
