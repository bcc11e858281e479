"""One HTML file with everything in it: the table, the plots, their data and plotly.js.

The page is a function of the records alone: the same records give the same bytes. A content
security policy names the hashes of our scripts, so nothing a record says can run or load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedsteer.records import Run
from fedsteer.records.files import write_atomically
from fedsteer.report.curves import accuracy_curve, bound_events, rounded, variance_curve
from fedsteer.report.entries import Entry, gather, look, names_of
from fedsteer.report.formats import columns, note
from fedsteer.report.pictures import coordinates, holdings
from fedsteer.report.sections import AXES, BANDS, COSTS, SECTIONS, choice, figure, pick, table
from fedsteer.report.styles import styles
from fedsteer.report.tables import Row, Summary, summarise
from fedsteer.report.visits import (
    EVENTS,
    Visits,
    dropped_table,
    raster,
    read_visits,
    residuals,
    staleness_shares,
)

SHOWN_CLIENTS = 6
SHOWN_REASONS = 100


@dataclass(frozen=True)
class Material:
    """What the page shows: the entries in the order of the table, and their summary."""

    entries: tuple[Entry, ...]
    summary: Summary
    visits: tuple[tuple[Visits, ...], ...]


def write_page(
    runs: Iterable[Run], path: Path, title: str = "Comparison", baseline: str | None = None
) -> Path:
    """Write the report of these runs to `path`, one file that needs no network."""
    write_atomically(path, render(runs, title, baseline).encode())
    return path


def render(runs: Iterable[Run], title: str, baseline: str | None = None) -> str:
    """The page as text."""
    material = _collect(list(runs), baseline)
    data = page_data(material)
    scripts = {
        "plotly": _asset("plotly-cartesian.min.js"),
        "plots": _asset("plots.js"),
        "behaviour": _asset("page.js"),
    }
    return Template(_asset("page.html")).substitute(
        scripts,
        policy=" ".join(f"'{_hash(script)}'" for script in scripts.values()),
        title=escape(title),
        facts="".join(f"<li>{escape(fact)}</li>" for fact in _facts(material) if fact != title),
        style=_asset("page.css"),
        table=_headline(material.summary),
        note=escape(note(material.summary)),
        figures="".join(_figures(material, data)),
        data=_embed(data),
    )


def page_data(material: Material) -> dict[str, Any]:
    """All numbers of the plots; a list has one item per rule, None where it has no data."""
    entries, visits = material.entries, material.visits
    rasters = [raster(entry.shown[0]) for entry in entries]
    unique: list[Any] = []
    for one in rasters:  # all rules meet the same draws: most of these are equal
        if one is not None and one not in unique:
            unique.append(one)
    return {
        "rules": [
            {"name": name, "seeds": len(entry.shown), **style}
            for name, entry, style in zip(names_of(entries), entries, styles(entries), strict=True)
        ],
        "accuracy": [accuracy_curve(entry.shown) for entry in entries],
        "residual": [residuals(one) for one in visits],
        "staleness": [staleness_shares(one) for one in visits],
        "variance": [variance_curve(entry.shown) for entry in entries],
        "cost": [_cost(row) for row in material.summary.rows],
        "coordinates": [coordinates(entry.shown[0]) for entry in entries],
        "holds": _holdings(entries),
        "events": [bound_events(entry.shown) for entry in entries],
        "kinds": list(EVENTS),
        "rasters": unique,
        "raster": [None if one is None else unique.index(one) for one in rasters],
    }


def _collect(runs: list[Run], baseline: str | None) -> Material:
    summary = summarise(runs, baseline)
    by_name = {(entry.experiment, entry.label): entry for entry in gather(runs)}
    entries = tuple(by_name[row.experiment, row.label] for row in summary.rows)
    visits = tuple(tuple(read_visits(run) for run in entry.shown) for entry in entries)
    return Material(entries, summary, visits)


def _figures(material: Material, data: dict[str, Any]) -> Iterable[str]:
    """The cards that have something to show, in the order of `SECTIONS`."""
    curves = [curve for curve in data["accuracy"] if curve]
    axes = [axis for axis in AXES if any(axis in curve for curve in curves)]
    costs = [cost for cost in COSTS if any(cost in point for point in data["cost"] if point)]
    stale = dict.fromkeys(group for shares in data["staleness"] for group in shares or ())
    dropped = _dropped(material)
    panels: dict[str, Sequence[str]] = {
        section.key: [""] if any(one is not None for one in data.get(section.key, ())) else []
        for section in SECTIONS
    }
    panels |= {
        "groups": list(dict.fromkeys(name for curve in curves for name in curve["groups"])),
        "staleness": sorted(stale),
    }
    extras = {
        "accuracy": choice("axis", AXES, axes) + _bands(material.entries),
        "cost": choice("cost", COSTS, costs),
        "coordinates": pick("coordinates", "rule") + pick("watched", "client"),
        "holds": pick("holds", "data of") if len(data["holds"]) > 1 else "",
        "raster": pick("raster", "rule") + '<div class="legend" data-legend="raster"></div>',
    }
    for section in SECTIONS:
        drawn, below = panels[section.key], dropped if section.key == "events" else ""
        if drawn or below:
            controls = extras.get(section.key, "")
            bar = f'<div class="controls">{controls}</div>' if controls else ""
            yield figure(section, bar, drawn, below)


def _bands(entries: Sequence[Entry]) -> str:
    """Intervals can be hidden, and are at first where two seeds make them as wide as the plot."""
    seeds = max(len(entry.shown) for entry in entries)
    return choice("bands", BANDS, list(BANDS) if seeds > 1 else (), "on" if seeds > 2 else "off")


def _headline(summary: Summary) -> str:
    shown = columns(summary)
    rows = [
        (index, [(column.text(row), _sortable(column.value(row))) for column in shown])
        for index, row in enumerate(summary.rows)
    ]
    return table([(one.heading, one.meaning, one.words) for one in shown], rows, "headline")


def _dropped(material: Material) -> str:
    rows = []
    names = names_of(material.entries)
    for index, visits in enumerate(material.visits):
        for reason, times, clients, first, last in dropped_table(visits)[:SHOWN_REASONS]:
            some = ", ".join(clients[:SHOWN_CLIENTS])
            more = len(clients) - SHOWN_CLIENTS
            cells = [
                (names[index], names[index]),
                (reason, reason),
                (str(times), str(times)),
                (some + (f" and {more} more" if more > 0 else ""), str(len(clients))),
                (str(first) if first == last else f"{first} to {last}", str(first)),
            ]
            rows.append((index, cells))
    if not rows:
        return ""
    headings = [
        ("rule", "", True),
        ("dropped because", "", True),
        ("times", "over all seeds", False),
        ("clients", "", True),
        ("rounds", "first and last", False),
    ]
    return table(headings, rows)


def _facts(material: Material) -> list[str]:
    """What was run, in a few words; a fact on which the runs differ is left out."""
    manifests = [run.manifest for entry in material.entries for run in entry.runs]

    def common(*keys: str) -> str | None:
        found = {str(look(manifest, *keys)) for manifest in manifests}
        return found.pop() if len(found) == 1 and found != {"None"} else None

    population = {len(look(one, "clients", "sizes") or ()) for one in manifests}
    facts = [
        common("experiment", "title") or common("experiment", "name"),
        common("data", "name"),
        f"{population.pop()} clients" if len(population) == 1 and population != {0} else None,
        f"{rounds} rounds" if (rounds := common("experiment", "run", "rounds")) else None,
        f"{len(material.entries)} rules",
        f"fedsteer {version}" if (version := common("version")) else None,
    ]
    return [fact for fact in facts if fact]


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
    costs["half"] = rounded(row.accuracy.half, 3)
    return costs


def _holdings(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """One picture for each different distribution of data (normally one per experiment).

    Only the first run of an entry is drawn: seeds differ in detail, not in kind. Of equal ones the
    first whose clients differ in presence is kept, since that orders them.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in sorted(entries, key=lambda entry: -_presences(entry)):
        picture = holdings(entry.shown[0])
        if picture is not None:
            key = json.dumps(look(entry.shown[0].manifest, "clients", "holds"))
            found.setdefault(key, {"title": entry.experiment or entry.label, **picture})
    return list(found.values())


def _presences(entry: Entry) -> int:
    """How many different probabilities of participation the clients have."""
    return len(set(map(str, look(entry.shown[0].manifest, "clients", "probabilities") or ())))


def _sortable(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.9g}"


def _embed(data: dict[str, Any]) -> str:
    """JSON that cannot end its script element, whatever the records hold."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (files("fedsteer.report") / "assets" / name).read_text(encoding="utf-8")
