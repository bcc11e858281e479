"""Pieces of HTML. Everything that comes from records passes through `escape` here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from fedsteer.report.tables import Column

Cell = tuple[str, str]
"""The text of a cell, and what its column is sorted by."""


def panels(key: str, names: Sequence[str]) -> str:
    """The boxes of a card's plots; the name "" is that of a single one."""
    boxes = ""
    for place, name in enumerate(names):
        heading = f'<h3 id="{key}-{place}">{escape(name)}</h3>' if name else ""
        title = f"{key}-title {key}-{place}" if name else f"{key}-title"
        boxes += (
            f'<div class="panel">{heading}<div class="plot" role="img" aria-labelledby="{title}" '
            f'data-plot="{key}" data-panel="{escape(name)}"></div></div>'
        )
    return f'<div class="panels">{boxes}</div>' if boxes else ""


def choice(name: str, words: Mapping[str, str], available: Sequence[str], meaning: str = "") -> str:
    """Buttons, one of which is pressed; nothing if there is no choice."""
    if len(available) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" data-value="{key}" aria-pressed="false">'
        f"{escape(words[key])}</button>"
        for key in available
    )
    label = f' aria-label="{escape(meaning)}"' if meaning else ""
    return f'<div class="choice" role="group"{label} data-choice="{name}">{buttons}</div>'


def pick(name: str, meaning: str) -> str:
    """A drop-down list that the page's script fills."""
    return f'<label class="pick">{meaning} <select data-pick="{name}"></select></label>'


def table(
    columns: Sequence[Column], rows: Sequence[tuple[int, Sequence[Cell]]], name: str = ""
) -> str:
    """A table in its own scrolling box; a row is the index of its entry and its cells."""
    kinds = [' class="words"' if column.words else "" for column in columns]
    head = "".join(
        f'<th scope="col"{kind} title="{escape(column.meaning)}">'
        f'<button type="button">{escape(_unbroken(column.heading))}</button></th>'
        for column, kind in zip(columns, kinds, strict=True)
    )
    body = ""
    for entry, cells in rows:
        body += f'<tr data-entry="{entry}">'
        for (text, value), kind in zip(cells, kinds, strict=True):
            shown = escape(text) if kind else _number(text)
            body += f'<td{kind} data-value="{escape(value)}">{shown}</td>'
        body += "</tr>\n"
    return (
        f'<div class="scroll" tabindex="0"><table class="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _unbroken(text: str) -> str:
    """A heading breaks between its words only."""
    return text.replace("-", "\N{NON-BREAKING HYPHEN}").replace(" %", "\N{NO-BREAK SPACE}%")


def _number(text: str) -> str:
    """The interval of a number is set smaller."""
    mean, sign, half = text.partition(" ± ")
    return f"{escape(mean)} <small>± {escape(half)}</small>" if sign else escape(text)
