"""One HTML file with everything in it: the table, the plots, their data and plotly.js.

The page is a function of the records alone: the same records give the same bytes. A content
security policy names the hashes of our scripts, so nothing a record says can run or load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedsteer.records import Run
from fedsteer.records.files import write_atomically
from fedsteer.report.entries import Entry, look
from fedsteer.report.figures import own_figure
from fedsteer.report.formats import columns, note
from fedsteer.report.material import Material, collect, page_data
from fedsteer.report.origin import ran_alone
from fedsteer.report.sections import (
    AXES,
    BANDS,
    COSTS,
    SECTIONS,
    choice,
    figure,
    part,
    pick,
    table,
)
from fedsteer.report.statistics import DRAWN_FROM
from fedsteer.report.visits import unused_table

SHOWN_CLIENTS = 6
SHOWN_REASONS = 20
DENSE = 11  # more columns than this are set smaller
BUTTONS = 6  # more experiments than this are chosen from a list
FROM_CLIENTS = ("residual", "staleness")  # plots of every seed whose rows of clients were kept


def write_page(
    runs: Iterable[Run],
    path: Path,
    title: str = "Comparison",
    baseline: str | None = None,
    sheet: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report of these runs to `path`, one file that needs no network.

    sheet   the table of the paper they are: what it says, its figure, and the order of experiments
    """
    write_atomically(path, render(runs, title, baseline, sheet).encode())
    return path


def render(
    runs: Iterable[Run],
    title: str,
    baseline: str | None = None,
    sheet: Mapping[str, Any] | None = None,
) -> str:
    """The page as text."""
    known = list(runs)
    material = collect(known, baseline, list((sheet or {}).get("paper") or ()))
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
        facts="".join(f"<li>{escape(fact)}</li>" for fact in _facts(material, title)),
        style=_asset("page.css"),
        selector=_selector(data["experiments"]),
        sheet=_sheet_card(known, sheet) if sheet else "",
        tables=_by_experiment(material, _headline),
        figures="".join(_figures(material, data)),
        data=_embed(data),
    )


def _sheet_card(runs: Sequence[Run], sheet: Mapping[str, Any]) -> str:
    """What the table is about, and its own figure where that is not the curves below."""
    words = [
        f"<p>{escape(part)}</p>" for part in _unquoted(sheet.get("about", "")).split("\n\n") if part
    ]
    words.append(_own_figure(runs, sheet))
    content = "".join(words)
    return f'<section class="card wide" id="sheet">{content}</section>' if content else ""


def _own_figure(runs: Sequence[Run], sheet: Mapping[str, Any]) -> str:
    """The figure as an image: its style and ids stay its own, and nothing in it can run."""
    try:
        drawn = own_figure(runs, sheet)
    except ModuleNotFoundError:
        return '<p class="note">The figure is left out: matplotlib is not installed.</p>'
    if drawn is None:
        return ""
    data = base64.b64encode(drawn.encode()).decode()
    words = escape(str(sheet.get("title", "")))
    return f'<div class="drawn"><img alt="{words}" src="data:image/svg+xml;base64,{data}"></div>'


def _selector(experiments: Sequence[str]) -> str:
    """What chooses the experiment, where there are several."""
    if len(experiments) < 2:
        return ""
    if len(experiments) > BUTTONS:
        return pick("experiment", "experiment")
    words = {str(place): name for place, name in enumerate(experiments)}
    return choice("experiment", words, list(words), meaning="Experiment")


def _figures(material: Material, data: dict[str, Any]) -> Iterable[str]:
    """The cards that have something to show, in the order of `SECTIONS`."""
    curves = [curve for curve in data["accuracy"] if curve]
    axes = [axis for axis in AXES if any(axis in curve for curve in curves)]
    costs = [cost for cost in COSTS if any(cost in point for point in data["cost"] if point)]
    stale = dict.fromkeys(group for shares in data["staleness"] for group in shares or ())
    unused = _by_experiment(material, _unused)
    kept = _by_experiment(material, _kept)
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
        drawn, below = panels[section.key], unused if section.key == "events" else ""
        if drawn or below:
            controls = extras.get(section.key, "")
            bar = f'<div class="controls">{controls}</div>' if controls else ""
            if below or section.key in FROM_CLIENTS:
                below += kept
            yield figure(section, bar, drawn, below)


def _bands(entries: Sequence[Entry]) -> str:
    """Intervals can be hidden, where there are any."""
    seeds = max(len(entry.shown) for entry in entries)
    return choice("bands", BANDS, list(BANDS) if seeds >= DRAWN_FROM else ())


def _by_experiment(material: Material, content: Callable[[Material, str], str]) -> str:
    """Content of each experiment, of which the page shows one; once where all have the same."""
    names = material.summary.experiments
    found = [content(material, name) for name in names]
    if len(set(found)) == 1:
        return found[0]
    return "".join(part(place, one) for place, one in enumerate(found) if one)


def _heading(material: Material, experiment: str) -> str:
    several = len(material.summary.experiments) > 1
    return f'<h3 class="name">{escape(experiment or "unnamed")}</h3>' if several else ""


def _headline(material: Material, experiment: str) -> str:
    places = material.of(experiment)
    summary = replace(material.summary, rows=tuple(material.summary.rows[at] for at in places))
    runs = [run for entry in material.entries for run in entry.runs]
    alone = ran_alone(runs)
    shown = [one for one in columns(summary) if alone or one.heading != "time"]
    rows = [
        (at, [(column.text(row), _sortable(column.value(row))) for column in shown])
        for at, row in zip(places, summary.rows, strict=True)
    ]
    name = "headline dense" if len(shown) > DENSE else "headline"
    return (
        _heading(material, experiment)
        + table([(one.heading, one.meaning, one.words) for one in shown], rows, name)
        + f'<p class="note">{escape(note(summary))}</p>'
    )


def _unquoted(text: object) -> str:
    """Without the marks that Markdown has for code."""
    return str(text).replace("`", "")


def _unused(material: Material, experiment: str) -> str:
    rows = []
    for at in material.of(experiment):
        label = material.entries[at].label
        reasons = unused_table(material.visits[at])[:SHOWN_REASONS]
        for reason, times, clients, first, last in reasons:
            some = ", ".join(clients[:SHOWN_CLIENTS])
            more = len(clients) - SHOWN_CLIENTS
            cells = [
                (label, label),
                (reason, reason),
                (str(times), str(times)),
                (some + (f" and {more} more" if more > 0 else ""), str(len(clients))),
                (str(first) if first == last else f"{first} to {last}", str(first)),
            ]
            rows.append((at, cells))
    if not rows:
        return ""
    headings = [
        ("rule", "", True),
        ("not used because", "", True),
        ("times", "over all seeds", False),
        ("clients", "", True),
        ("rounds", "first and last", False),
    ]
    return _heading(material, experiment) + table(headings, rows)


def _kept(material: Material, experiment: str) -> str:
    """A line where the records, packed small, hold the clients' rows of some seeds only."""
    seeds = [[one.rows > 0 for one in material.visits[at]] for at in material.of(experiment)]
    partly = [kept for kept in seeds if any(kept) and not all(kept)]
    if not partly:
        return ""
    which = "the first seed" if all(kept[0] and sum(kept) == 1 for kept in partly) else "some seeds"
    words = f"From {which} only: these records do not hold the clients' rows of the others."
    return f'<p class="note">{words}</p>'


def _facts(material: Material, title: str) -> list[str]:
    """What was run, in a few words; a fact on which the runs differ is left out."""
    manifests = [run.manifest for entry in material.entries for run in entry.runs]

    def common(*keys: str) -> str | None:
        found = {str(look(manifest, *keys)) for manifest in manifests}
        return found.pop() if len(found) == 1 and found != {"None"} else None

    population = {len(look(one, "clients", "sizes") or ()) for one in manifests}
    experiments, rules = len(material.summary.experiments), len(material.rules)
    facts = [
        common("experiment", "title") or common("experiment", "name"),
        common("data", "name"),
        f"{population.pop()} clients" if len(population) == 1 and population != {0} else None,
        f"{rounds} rounds" if (rounds := common("experiment", "run", "rounds")) else None,
        f"{experiments} experiments" if experiments > 1 else None,
        f"{rules} rules" if rules > 1 else "1 rule",
        f"fedsteer {version}" if (version := common("version")) else None,
    ]
    # An experiment of a table is titled "<table>: <experiment>": the first half is said already.
    return [fact.removeprefix(f"{title}: ") for fact in facts if fact and fact != title]


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
