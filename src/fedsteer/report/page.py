"""One HTML file with everything in it: the table, the plots, their data and plotly.js.

The page is a function of the records alone: the same records give the same bytes. A content
security policy names the hashes of our scripts, so nothing a record says can run or load anything.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedsteer.records import Run
from fedsteer.records.files import look, write_atomically
from fedsteer.report.entries import grouped
from fedsteer.report.figures import own_figure
from fedsteer.report.page_data import page_data
from fedsteer.report.summary import Summary, summarise
from fedsteer.report.tables import columns, note
from fedsteer.report.visits import of_clients, read_visits

DENSE = 11  # a table with more columns gets smaller text
KEPT = '<p class="note">These records hold client rows of some seeds only.</p>'
WORDS = ' class="words"'  # such cells are left-aligned


def write_page(
    runs: Iterable[Run],
    path: Path,
    title: str = "Comparison",
    baseline: str | None = None,
    paper_table: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report of these runs to `path`, one file that needs no network.

    paper_table   the table of the paper they are: its text, figure and order of experiments
    """
    write_atomically(path, render(runs, title, baseline, paper_table).encode())
    return path


def render(
    runs: Iterable[Run],
    title: str,
    baseline: str | None = None,
    paper_table: Mapping[str, Any] | None = None,
) -> str:
    known = list(runs)
    summary = summarise(known, baseline, order=(paper_table or {}).get("paper") or ())
    visits = [[read_visits(run) for run in row.shown] for row in summary.rows]
    data = page_data(summary, visits)
    partly = any(len({one.rows > 0 for one in runs}) > 1 for runs in visits)  # packed small
    scripts = {
        "plotly": _asset("plotly-cartesian.min.js"),
        "plots": _asset("plots.js"),
        "behaviour": _asset("page.js"),
    }
    digests = [b64encode(hashlib.sha256(one.encode()).digest()) for one in scripts.values()]
    return Template(_asset("page.html")).substitute(
        scripts,
        policy=" ".join(f"'sha256-{digest.decode()}'" for digest in digests),
        title=escape(title),
        facts="".join(f"<li>{escape(fact)}</li>" for fact in _facts(summary, title)),
        style=_asset("page.css"),
        paper_table=_paper_table_card(known, paper_table) if paper_table else "",
        tables=_tables(summary),
        figures="\n".join(_cards(data, KEPT if partly else "")),
        data=_embed(data),
    )


def _paper_table_card(runs: Sequence[Run], paper_table: Mapping[str, Any]) -> str:
    """The text of the table, and its figure unless that is the curves below."""
    about = str(paper_table.get("about", "")).replace("`", "")  # Markdown's marks for code
    content = "".join(f"<p>{escape(part)}</p>" for part in about.split("\n\n") if part)
    if (figure := own_figure(runs, paper_table)) is not None:
        title = str(paper_table.get("title", "Results"))
        try:  # as an image: its style and ids stay its own, and nothing in it can run
            address = "data:image/svg+xml;base64," + b64encode(figure.svg(title).encode()).decode()
            content += f'<div class="drawn"><img alt="{escape(title)}" src="{address}"></div>'
        except ModuleNotFoundError:
            content += '<p class="note">The figure is left out: matplotlib is not installed.</p>'
    return f'<section class="card wide" id="paper">{content}</section>' if content else ""


def _cards(data: dict[str, Any], kept: str) -> Iterable[str]:
    """The cards of `cards.html` that have something to show; the page's script adds the plots."""
    for card in _asset("cards.html").split("\n\n"):
        key = card.partition('id="')[2].partition('"')[0]
        has_rows = key != "events" or any(data["unused"])
        if data["panels"][key] or (key == "events" and has_rows):
            yield Template(card).substitute(
                kept=kept if has_rows else "",
                measure=data["measure"].capitalize(),
                measured="Loss" if data["measure"] == "loss" else "Test accuracy",
            )


def _tables(summary: Summary) -> str:
    """The table of each experiment, of which the page shows one."""
    found, first = "", 0
    for place, (name, rows) in enumerate(grouped(summary.rows, lambda row: row.experiment).items()):
        table = _table(replace(summary, rows=tuple(rows)), first)
        heading = f'<h3 class="name">{escape(name or "unnamed")}</h3>'
        several = len(rows) < len(summary.rows)
        found += f'<div data-experiment="{place}">{heading}{table}</div>' if several else table
        first += len(rows)
    return found


def _table(summary: Summary, first: int) -> str:
    """A table in its own scrolling box; `first` is the place of its first row among all."""
    # Runs share a machine, so the time of one says little.
    shown = [column for column in columns(summary) if column.heading != "time"]
    head = "".join(
        f'<th scope="col"{WORDS * column.words} title="{escape(column.meaning)}">'
        f'<button type="button">{escape(_unbroken(column.heading))}</button></th>'
        for column in shown
    )
    body = ""
    for at, row in enumerate(summary.rows, start=first):
        body += f'<tr data-entry="{at}">'
        for column in shown:
            text, value = column.text(row), column.value(row)
            cell = escape(text) if column.words else _number(text)
            key = "" if value is None else escape(str(value))
            body += f'<td{WORDS * column.words} data-value="{key}">{cell}</td>'
        body += "</tr>\n"
    return (
        '<div class="scroll" tabindex="0">'
        f'<table class="headline{" dense" * (len(shown) > DENSE)}">'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
        f'<p class="note">{escape(note(summary))}</p>'
    )


def _facts(summary: Summary, title: str) -> list[str]:
    """The experiment in a few words, without facts in which the runs differ."""
    manifests = [run.manifest for row in summary.rows for run in row.runs]

    def common(*keys: str) -> str | None:
        found = {str(look(manifest, *keys)) for manifest in manifests}
        return found.pop() if len(found) == 1 and found != {"None"} else None

    clients = {len(of_clients(manifest, "sizes")) for manifest in manifests}
    experiments, rules = len(summary.experiments), len({row.label for row in summary.rows})
    facts = [
        common("experiment", "title") or common("experiment", "name"),
        common("data", "name"),
        f"{clients.pop()} clients" if len(clients) == 1 and clients != {0} else None,
        f"{rounds} rounds" if (rounds := common("experiment", "run", "rounds")) else None,
        f"{experiments} experiments" if experiments > 1 else None,
        f"{rules} rules" if rules > 1 else "1 rule",
        f"fedsteer {version}" if (version := common("version")) else None,
    ]
    # An experiment of a table is titled "<table>: <experiment>", and the page <table>.
    return [fact.removeprefix(f"{title}: ") for fact in facts if fact and fact != title]


def _unbroken(text: str) -> str:
    """A heading breaks between its words only."""
    return text.replace("-", "\N{NON-BREAKING HYPHEN}").replace(" %", "\N{NO-BREAK SPACE}%")


def _number(text: str) -> str:
    """A number, its interval in smaller text."""
    mean, sign, half = text.partition(" ± ")
    return f"{escape(mean)} <small>± {escape(half)}</small>" if sign else escape(text)


def _embed(data: dict[str, Any]) -> str:
    """JSON that cannot end its script element, whatever the records hold."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (files("fedsteer.report") / "assets" / name).read_text(encoding="utf-8")
