"""What `clients.jsonl` tells: how stale clients are, how well they are known, who was there.

Staleness (rounds since the last visit) has a long tail, so it is binned in steps of sqrt(2).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsteer.records import Run
from fedsteer.report.curves import rounded, thinned
from fedsteer.report.entries import look, number
from fedsteer.report.statistics import estimate

EDGES = sorted({round(2 ** (step / 2)) for step in range(41)})
EVENTS = ("absent", "failed", "fresh", "refresh", "collect", "dropped")
"""Where a picture has several rounds in one place, the later in this list shows."""
RASTER_CLIENTS = 200
RASTER_ROUNDS = 400
EVERYBODY = ""


@dataclass
class Visits:
    """Sums over the rows of one run."""

    rows: int = 0
    staleness: dict[str, Counter[int]] = field(default_factory=dict)  # data group -> bin -> count
    errors: dict[int, list[float]] = field(default_factory=dict)  # bin -> relative errors
    unused: list[tuple[int, str, str]] = field(default_factory=list)  # round, client, reason


def read_visits(run: Run) -> Visits:
    """Go through a run's clients once; the rows themselves are not kept in memory."""
    visits = Visits()
    groups = look(run.manifest, "clients", "data_group")
    rows = run.rows("clients")
    called = _names(rows)
    for row in rows:
        visits.rows += 1
        event = look(row, "event")
        if _kind(event) in ("dropped", "failed"):
            reason = str(look(row, "reason") or "no reason given")
            if event != "dropped" and not reason.startswith(str(event)):
                reason = f"{event}: {reason}"
            moment = int(number(row, "round") or 0)
            client = str(look(row, "client"))
            visits.unused.append((moment, called.get(client, client), reason))
        staleness = number(row, "staleness")
        if event != "fresh" or staleness is None or staleness < 1:
            continue
        where = bin_of(staleness)
        group = _group_of(groups, look(row, "client"))
        visits.staleness.setdefault(group, Counter())[where] += 1
        error = number(row, "relative_error")
        if error is not None:
            visits.errors.setdefault(where, []).append(error)
    return visits


def staleness_shares(visits: Sequence[Visits]) -> dict[str, Any] | None:
    """Per data group, where training updates lie over staleness, all seeds pooled.

    y       share of the updates per round of absence: bins differ in width, and a wide one would
            look like a peak
    share   share of the updates in the whole bin
    """
    pooled: dict[str, Counter[int]] = {}
    for one in visits:
        for group, counts in one.staleness.items():
            pooled.setdefault(group, Counter()).update(counts)
    if not pooled:
        return None
    shares = {}
    for group, counts in sorted(pooled.items()):
        bins, total = sorted(counts), counts.total()
        shares[group] = {
            "x": [bin_centre(one) for one in bins],
            "y": [rounded(counts[one] / total / bin_width(one), 3) for one in bins],
            "share": [rounded(counts[one] / total, 3) for one in bins],
            "bin": [bin_words(one) for one in bins],
        }
    return shares


def residuals(visits: Sequence[Visits]) -> dict[str, Any] | None:
    """Mean relative error of the estimate by staleness: mean over seeds of each seed's mean."""
    bins = sorted({where for one in visits for where in one.errors})
    if not bins:
        return None
    found = [
        estimate(float(np.mean(one.errors[where])) for one in visits if where in one.errors)
        for where in bins
    ]
    counts = [sum(len(one.errors.get(where, ())) for one in visits) for where in bins]
    return {
        "x": [bin_centre(where) for where in bins],
        "mean": [rounded(one.mean) if one else None for one in found],
        "half": [rounded(one.drawn, 3) if one else None for one in found],
        "bin": [bin_words(where) for where in bins],
        "count": counts,
    }


def unused_table(visits: Sequence[Visits]) -> list[tuple[str, int, list[str], int, int]]:
    """(reason, times, some clients, first round, last round), most frequent reason first."""
    by_reason: dict[str, list[tuple[int, str]]] = {}
    for one in visits:
        for moment, client, reason in one.unused:
            by_reason.setdefault(reason, []).append((moment, client))
    rows = []
    for reason, cases in by_reason.items():
        moments = [moment for moment, _ in cases]
        clients = sorted(dict.fromkeys(client for _, client in cases), key=_natural)
        rows.append((reason, len(cases), clients, min(moments), max(moments)))
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def raster(run: Run) -> dict[str, Any] | None:
    """Who was there in a run: a string per client, a digit (index into EVENTS) per round."""
    rows = run.rows("clients")
    called = _names(rows)
    seen = [
        (
            called.get(client := str(look(row, "client")), client),
            int(moment),
            EVENTS.index(_kind(look(row, "event"))),
        )
        for row in rows
        if (moment := number(row, "round")) is not None and look(row, "event") is not None
    ]
    if not seen:
        return None
    names = {client for client, _, _ in seen}
    order = client_order(run.manifest)
    if not names <= set(order):  # ids of another kind than the manifest's numbers
        order = sorted(names, key=_natural)
    kept = [order[index] for index in thinned(len(order), RASTER_CLIENTS)]
    place = {client: index for index, client in enumerate(kept)}
    last = max(moment for _, moment, _ in seen)
    last = max([last, *(int(number(row, "round") or 0) for row in run.rounds)])
    width = -(-last // RASTER_ROUNDS)
    image = np.zeros((len(kept), -(-last // width)), int)
    for client, moment, code in seen:
        if client in place and moment >= 1:
            cell = (place[client], (moment - 1) // width)
            image[cell] = max(image[cell], code)
    return {
        "clients": kept,
        "step": width,
        "image": ["".join(map(str, line)) for line in image.tolist()],
        "of": len(order),
    }


def _names(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Flower: what a node that had not told who it is turned out to be called."""
    return {str(row["node"]): str(look(row, "client")) for row in rows if look(row, "node")}


def client_order(manifest: dict[str, Any]) -> list[str]:
    """Clients by data group, the most often present first; the manifest numbers them 0..N-1."""
    clients = look(manifest, "clients")
    lists = [look(clients, key) for key in ("sizes", "data_group", "probabilities", "holds")]
    count = max((len(entry) for entry in lists if isinstance(entry, list)), default=0)
    groups, probabilities = look(clients, "data_group"), look(clients, "probabilities")
    names = list(dict.fromkeys(map(str, groups))) if isinstance(groups, list) else []

    def place(client: int) -> tuple[int, float, int]:
        group = _group_of(groups, client)
        present = probabilities[client] if _covers(probabilities, client) else 0.0
        return (names.index(group) if group in names else 0, -float(present or 0.0), client)

    return [str(client) for client in sorted(range(count), key=place)]


def _kind(event: Any) -> Any:
    """An event that is none of ours is an update that was not used."""
    return event if event is None or event in EVENTS else "dropped"


def _group_of(groups: Any, client: Any) -> str:
    return str(groups[client]) if _covers(groups, client) else EVERYBODY


def _covers(values: Any, client: Any) -> bool:
    return isinstance(values, list) and isinstance(client, int) and 0 <= client < len(values)


def bin_of(staleness: float) -> int:
    """The bin of a number of rounds."""
    return int(np.searchsorted(EDGES, staleness, side="right")) - 1


def bin_centre(where: int) -> float | int | None:
    """Where a bin is drawn."""
    low, high = EDGES[where], _last(where)
    return rounded((low * high) ** 0.5, 3)


def bin_width(where: int) -> int:
    """How many numbers of rounds fall into a bin."""
    return _last(where) + 1 - EDGES[where]


def bin_words(where: int) -> str:
    """The rounds in a bin, e.g. "6 to 7"."""
    low, high = EDGES[where], _last(where)
    return str(low) if low == high else f"{low} to {high}"


def _last(where: int) -> int:
    return EDGES[where + 1] - 1 if where + 1 < len(EDGES) else EDGES[where]


def _natural(client: str) -> tuple[str, int, str]:
    """client-2 before client-10."""
    word, number = re.fullmatch(r"(.*?)(\d{0,18})", client, re.DOTALL).groups()  # type: ignore[union-attr]
    return word, int(number or -1), client
