"""The numbers of the page: what it shows of each rule in each experiment, as JSON-able data.

An entry is a rule in an experiment. A rule that was run in several experiments has one name, look
and button; the reader chooses the experiment.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedsteer.records import Run
from fedsteer.report.curves import accuracy_curve, bound_events, rounded, variance_curve
from fedsteer.report.entries import Entry, gather, look
from fedsteer.report.pictures import coordinates, holdings
from fedsteer.report.styles import DARK, LIGHT, styles
from fedsteer.report.tables import Row, Summary, summarise
from fedsteer.report.visits import (
    EVENTS,
    Visits,
    raster,
    read_visits,
    residuals,
    staleness_shares,
)


@dataclass(frozen=True)
class Material:
    """What the page shows: the entries in the order of the rows of the summary."""

    entries: tuple[Entry, ...]
    summary: Summary
    visits: tuple[tuple[Visits, ...], ...]  # per entry, those of the runs that are shown

    @property
    def rules(self) -> dict[str, Entry]:
        """Label of each rule -> its first entry."""
        found: dict[str, Entry] = {}
        for entry in self.entries:
            found.setdefault(entry.label, entry)
        return found

    def of(self, experiment: str) -> list[int]:
        """Places of the entries of an experiment."""
        return [at for at, entry in enumerate(self.entries) if entry.experiment == experiment]


def collect(runs: Sequence[Run], baseline: str | None, order: Sequence[str] = ()) -> Material:
    """Read the runs; experiments in this order, then in that of the runs."""
    summary = summarise(runs, baseline)
    entries = gather(runs)
    place = {run.folder: at for at, run in reversed(list(enumerate(runs)))}
    first = {name: len(runs) for name in summary.experiments}
    for entry in entries:
        for run in entry.runs:
            first[entry.experiment] = min(first[entry.experiment], place[run.folder])
    wanted = [name for name in order if name in first]
    wanted += [name for name in sorted(first, key=first.__getitem__) if name not in wanted]
    rows = tuple(sorted(summary.rows, key=lambda row: wanted.index(row.experiment)))
    by_name = {(entry.experiment, entry.label): entry for entry in entries}
    ordered = tuple(by_name[row.experiment, row.label] for row in rows)
    visits = tuple(tuple(read_visits(run) for run in entry.shown) for entry in ordered)
    return Material(ordered, Summary(rows, summary.baseline, summary.groups), visits)


def page_data(material: Material) -> dict[str, Any]:
    """All numbers of the plots.

    rules         name and look of each rule
    experiments   their names
    entries       which rule in which experiment, as places in these two lists
    others        have one item per entry, None where it has no data; `holds` and `rasters` are
                  kept once where they are equal
    """
    entries, visits = material.entries, material.visits
    rules, experiments = list(material.rules), list(material.summary.experiments)
    looks = styles(entries)
    rasters = [raster(entry.shown[0]) for entry in entries]
    unique: list[Any] = []
    for one in rasters:  # all rules meet the same draws: most of these are equal
        if one is not None and one not in unique:
            unique.append(one)
    return {
        "rules": [{"name": name, **asdict(looks[name])} for name in rules],
        "palettes": {"light": LIGHT, "dark": DARK},
        "experiments": [name or "unnamed" for name in experiments],
        "entries": [
            {"rule": rules.index(one.label), "experiment": experiments.index(one.experiment)}
            for one in entries
        ],
        "accuracy": [accuracy_curve(entry.shown) for entry in entries],
        "residual": [residuals(one) for one in visits],
        "staleness": [staleness_shares(one) for one in visits],
        "variance": [variance_curve(entry.shown) for entry in entries],
        "cost": [_cost(row) for row in material.summary.rows],
        "coordinates": [coordinates(entry.shown[0]) for entry in entries],
        "holds": _holdings(material),
        "events": [bound_events(entry.shown) for entry in entries],
        "kinds": list(EVENTS),
        "rasters": unique,
        "raster": [None if one is None else unique.index(one) for one in rasters],
    }


def _cost(row: Row) -> dict[str, Any] | None:
    """Final accuracy and what it took; None without an accuracy or any cost."""
    sent = [one.mean for one in (row.bytes_up, row.bytes_down) if one is not None]
    costs: dict[str, Any] = {}
    if row.server_bytes is not None:
        costs["memory"] = rounded(row.server_bytes.mean)
    if sent:
        costs["sent"] = rounded(sum(sent))
    if row.accuracy is None or not costs:
        return None
    costs["mean"] = rounded(row.accuracy.mean)
    costs["half"] = rounded(row.accuracy.drawn, 3)
    return costs


def _holdings(material: Material) -> list[dict[str, Any]]:
    """One picture for each different distribution of data (normally one per experiment).

    Only the first run of an entry is drawn: seeds differ in detail, not in kind. Of equal ones in
    an experiment the first whose clients differ in presence is kept, since that orders them.
    """
    found: list[dict[str, Any]] = []
    for place, experiment in enumerate(material.summary.experiments):
        seen: set[str] = set()
        members = [material.entries[at] for at in material.of(experiment)]
        for entry in sorted(members, key=lambda entry: -_presences(entry)):
            key = json.dumps(look(entry.shown[0].manifest, "clients", "holds"))
            picture = None if key in seen else holdings(entry.shown[0])
            seen.add(key)
            if picture is None:
                continue
            same = next((one for one in found if picture.items() <= one.items()), None)
            if same is not None:
                same["experiments"].append(place)
            else:
                title = entry.experiment or entry.label
                found.append({"title": title, "experiments": [place], **picture})
    return found


def _presences(entry: Entry) -> int:
    """How many different probabilities of participation the clients have."""
    return len(set(map(str, look(entry.shown[0].manifest, "clients", "probabilities") or ())))
