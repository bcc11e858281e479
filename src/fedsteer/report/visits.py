"""The numbers of `clients.jsonl`: staleness, errors of the estimates, participation.

Staleness (rounds since the last visit) has a long tail, so it is binned in steps of sqrt(2).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from fedsteer.records import Run
from fedsteer.records.files import look, number, rounded
from fedsteer.report.curves import thinned
from fedsteer.report.entries import grouped
from fedsteer.report.statistics import Estimate, estimate

EDGES = sorted({round(2 ** (step / 2)) for step in range(42)})
BINS = [range(first, after) for first, after in pairwise(EDGES)]
"""The rounds of absence in each bin of staleness."""
EVENTS = ("absent", "failed", "fresh", "refresh", "collect", "dropped")
"""If a picture has several rounds in one place, the later in this list shows."""
SPAN = 10
"""Training rounds in a bin."""
SHOWN_REASONS, SHOWN_CLIENTS = 20, 6
RASTER_CLIENTS = 200
RASTER_ROUNDS = 400


@dataclass
class Visits:
    """Sums over the rows of one run."""

    rows: int = 0
    staleness: Counter[tuple[str, int]] = field(default_factory=Counter)  # by data group and bin
    # Relative errors in training, by column of the records, "staleness" or "round", and bin.
    errors: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    unused: list[tuple[int, str, str]] = field(default_factory=list)  # round, client, reason


def read_visits(run: Run) -> Visits:
    groups = of_clients(run.manifest, "data_group")
    warm_up = int(number(run.result, "warm_up_rounds") or 0)
    rows = run.rows("clients")
    visits = Visits(rows=len(rows))
    for row, client in zip(rows, _clients(rows), strict=True):
        event, moment = row.get("event"), int(number(row, "round") or 0)
        if _kind(event) in ("dropped", "failed"):
            reason = str(row.get("reason") or "no reason given")
            if event != "dropped" and not reason.startswith(str(event)):
                reason = f"{event}: {reason}"
            visits.unused.append((moment, client, reason))
        staleness = number(row, "staleness")
        if event != "fresh" or staleness is None or staleness < 1:
            continue
        where = bisect_right(EDGES, staleness, hi=len(BINS)) - 1
        visits.staleness[str(groups.get(client, "")), where] += 1
        for column in ("relative_error", "refreshed_error"):
            error = number(row, column)
            if error is None or 0 < moment <= warm_up:
                continue
            for axis, at in (("staleness", where), ("round", (moment - warm_up - 1) // SPAN)):
                visits.errors.setdefault((column, axis, at), []).append(rounded(error))
    return visits


def staleness_shares(visits: Sequence[Visits]) -> dict[str, Any] | None:
    """Shares of the training updates by staleness, per data group, all seeds pooled.

    y       share per round of absence: bins differ in width, and a wide one would look like a peak
    share   share of the whole bin
    """
    pooled = sum((one.staleness for one in visits), Counter[tuple[str, int]]())
    shares = {}
    for group in sorted({group for group, _ in pooled}):
        bins = sorted(where for name, where in pooled if name == group)
        total = sum(pooled[group, one] for one in bins)
        shares[group] = {
            "x": [bin_centre(one) for one in bins],
            "y": [rounded(pooled[group, one] / total / len(BINS[one]), 3) for one in bins],
            "share": [rounded(pooled[group, one] / total, 3) for one in bins],
            "bin": [bin_words(one) for one in bins],
        }
    return shares or None


def residuals(visits: Sequence[Visits]) -> dict[str, Any] | None:
    """Mean relative error of the estimate by staleness: mean over seeds of each seed's mean."""
    over = "relative_error", "staleness"
    found = mean_errors(visits, *over)
    if not found:
        return None
    return {
        "x": [bin_centre(where) for where in found],
        "mean": [rounded(one.mean) for one in found.values()],
        "half": [rounded(one.drawn, 3) for one in found.values()],
        "bin": [bin_words(where) for where in found],
        "count": [sum(len(one.errors.get((*over, at), ())) for one in visits) for at in found],
    }


def mean_errors(visits: Sequence[Visits], column: str, axis: str) -> dict[int, Estimate]:
    """Bin -> mean over seeds of each seed's mean."""
    bins = sorted({key[2] for one in visits for key in one.errors if key[:2] == (column, axis)})
    values = {at: [one.errors.get((column, axis, at)) for one in visits] for at in bins}
    found = {at: estimate(float(np.mean(own)) for own in values[at] if own) for at in bins}
    return {at: one for at, one in found.items() if one is not None}


def unused_updates(visits: Sequence[Visits]) -> list[dict[str, Any]]:
    """Reasons with their clients and rounds; the most frequent reason first."""
    by_reason = grouped((case for one in visits for case in one.unused), lambda case: case[2])
    found = []
    for reason, cases in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        clients = sorted({client for _, client, _ in cases}, key=_natural)
        found.append(
            {"reason": reason, "times": len(cases), "rounds": [min(cases)[0], max(cases)[0]]}
            | {"clients": clients[:SHOWN_CLIENTS], "of": len(clients)}
        )
    return found[:SHOWN_REASONS]


def raster(run: Run) -> dict[str, Any] | None:
    """Participation in a run: a string per client, a digit (index into EVENTS) per round."""
    rows = run.rows("clients")
    seen = [
        (client, int(moment), EVENTS.index(_kind(event)))
        for row, client in zip(rows, _clients(rows), strict=True)
        if (moment := number(row, "round")) is not None and (event := row.get("event"))
    ]
    if not seen:
        return None
    present = {client for client, _, _ in seen}
    order = client_order(run.manifest)
    if not present <= set(order):  # ids of another kind than the manifest's numbers
        order = sorted(present, key=_natural)
    kept = thinned(order, RASTER_CLIENTS)
    place = {client: index for index, client in enumerate(kept)}
    last = max(len(run.rounds), *(moment for _, moment, _ in seen))
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


def client_order(manifest: dict[str, Any]) -> list[str]:
    """Clients by data group, the most often present first."""
    groups, probabilities, sizes, holds = (
        of_clients(manifest, key) for key in ("data_group", "probabilities", "sizes", "holds")
    )
    names = list(dict.fromkeys(map(str, groups.values())))
    ranks = {client: names.index(str(group)) for client, group in groups.items()}
    chances = {client: number(chance) or 0.0 for client, chance in probabilities.items()}
    clients = max(groups, probabilities, sizes, holds, key=len)
    return sorted(clients, key=lambda client: (ranks.get(client, 0), -chances.get(client, 0.0)))


def of_clients(manifest: dict[str, Any], key: str) -> dict[str, Any]:
    """A list of the manifest, which numbers the clients 0..N-1, by client."""
    values = look(manifest, "clients", key)
    return {str(at): value for at, value in enumerate(values)} if isinstance(values, list) else {}


def bin_centre(where: int) -> Any:
    rounds = BINS[where]
    return rounded((rounds[0] * rounds[-1]) ** 0.5, 3)


def bin_words(where: int) -> str:
    """The rounds in a bin, e.g. "6 to 7"."""
    rounds = BINS[where]
    return str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"


def _clients(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The client of every row. Under Flower it has the id of its node until it first answers."""
    names = {str(row["node"]): str(row.get("client")) for row in rows if row.get("node")}
    ids = [str(row.get("client")) for row in rows]
    return [names.get(one, one) for one in ids]


def _kind(event: Any) -> Any:
    """An unknown event counts as an update that was not used."""
    return event if event is None or event in EVENTS else "dropped"


def _natural(client: str) -> tuple[str, int, str]:
    """client-2 before client-10."""
    word = client.rstrip("0123456789")
    return word, len(client), client
