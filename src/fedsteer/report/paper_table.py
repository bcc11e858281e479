"""Our numbers beside the published ones.

`fedsteer reproduce` leaves a `sheet.json` beside the runs, which says what table or figure of the
paper they are: `title`, `about`, `commands`, `figure` and `paper`, the published accuracies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsteer.records import Run
from fedsteer.report.entries import Entry, gather, in_order, number
from fedsteer.report.origin import origin
from fedsteer.report.statistics import Estimate, estimate, height
from fedsteer.report.summary import Row, Summary, summarise
from fedsteer.report.tables import MISSING, columns, markdown, percent, points, table, with_half

Published = Mapping[str, Mapping[str, float]]
"""Experiment -> label -> accuracy as printed in the paper."""

NOTES = {  # heading -> what to say if the column is there
    "ours %": "Means over seeds; ± is the 95 % interval (Student's t).",
    "vs {baseline}": "Differences to {baseline} are in points, paired by seed.",
    "last third %": "Last third: the mean over the evaluations of the last third of the rounds.",
    "warm-up rounds": "Warm-up: what a rule spent before the first of its training rounds; "
    "`sent up` counts it.",
    "memory": "Memory is the peak of the server rule, warm-up included.",
}
OURS = (
    *("vs {baseline}", "last third %", "last third vs {baseline}"),
    *("warm-up rounds", "warm-up uploads", "sent up", "memory"),
)
"""Columns of the plain table that are shown here too."""
ALWAYS = ("experiment", "rule", "ours %")


@dataclass(frozen=True)
class Line:
    """One rule in one experiment."""

    row: Row
    label: str
    paper: float | None
    chosen: str  # the setting that was chosen, if the rule was run under several


@dataclass(frozen=True)
class Choice:
    """One rule under several settings, of which the paper has one line."""

    experiment: str
    name: str
    best: str
    settings: tuple[tuple[str, Estimate, Estimate | None], ...]  # label, held-out and test accuracy


def paper_table_markdown(
    runs: Iterable[Run], paper_table: Mapping[str, Any], numbers: str = ""
) -> str:
    """What the paper says, the table, how settings were chosen, and where the numbers come from.

    numbers   the table of the paper's figure, if it has one
    """
    known = list(runs)
    summary = summarise(known)
    lines, choices = lines_of(known, summary, paper_table.get("paper") or {})
    rows = [_cells(line, summary) for line in lines]
    shown = {heading for row in rows for heading, cell in row.items() if cell != MISSING}
    kept = [heading for heading in rows[0] if heading in shown.union(ALWAYS)]
    notes = [(text.format(baseline=summary.baseline) for text in note) for note in NOTES.items()]
    parts = [
        f"# {markdown(str(paper_table.get('title', 'Results')))}",
        str(paper_table.get("about", "")),
        table(kept, [[row[heading] for heading in kept] for row in rows], ALWAYS[:2]),
        *map(_choice_words, choices),
        numbers,
        markdown(" ".join(words for heading, words in notes if heading in kept)),
        origin(known, [str(command) for command in paper_table.get("commands", ())]),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def lines_of(
    runs: Iterable[Run], summary: Summary, published: Published
) -> tuple[list[Line], list[Choice]]:
    """Every rule in every experiment, best of ours first, experiments in the paper's order.

    Labels such as "fedstale-0.7" are one rule under several settings. The paper has one line for
    them; ours is the setting with the best accuracy on held-out training images.
    """
    entries = gather(runs)
    rows = {(row.experiment, row.label): row for row in summary.rows}
    lines: list[Line] = []
    choices: list[Choice] = []
    for experiment in in_order(sorted({entry.experiment for entry in entries}), published):
        here = [entry for entry in entries if entry.experiment == experiment]
        paper = published.get(experiment, {})
        made = [choice for name in paper if (choice := _choice(name, here)) is not None]
        choices += made
        hidden = {label for choice in made for label, _, _ in choice.settings}
        chosen = {entry.label: "" for entry in here if entry.label not in hidden}
        chosen |= {choice.name: choice.best for choice in made}
        found = [
            Line(row=rows[experiment, best or name], label=name, paper=paper.get(name), chosen=best)
            for name, best in chosen.items()
        ]
        lines += sorted(found, key=lambda line: (-height(line.row.accuracy), line.label))
    return lines, choices


def _cells(line: Line, summary: Summary) -> dict[str, str]:
    """Heading -> cell."""
    row, difference = line.row, MISSING
    if row.accuracy is not None and line.paper is not None:
        difference = points(row.accuracy.mean - line.paper)
    plain = {column.heading: column.text(row) for column in columns(summary)}
    ours = [heading.format(baseline=summary.baseline) for heading in OURS]
    seeds = f"{row.finished} of {row.finished + row.unfinished}"
    return {
        "experiment": row.experiment,
        "rule": line.label + (f" ({line.chosen}, chosen on held-out images)" * bool(line.chosen)),
        "ours %": plain.get("accuracy %", MISSING),
        "paper %": MISSING if line.paper is None else percent(line.paper),
        "difference": difference,
        **{heading: plain.get(heading, MISSING) for heading in ours},
        "seeds": seeds if row.unfinished else str(row.finished),
    }


def _choice(name: str, entries: Sequence[Entry]) -> Choice | None:
    """The settings of a rule that the paper names without one; None if that is not the case.

    They are chosen on images that are neither trained on nor in the test set. Without such images
    nothing is chosen and every setting keeps its own line.
    """
    family = [entry for entry in entries if entry.label.startswith(f"{name}-")]
    known = [
        (entry.label, held_out, _final(entry, "accuracy"))
        for entry in family
        if (held_out := _final(entry, "held_out_accuracy")) is not None
    ]
    has_own_line = any(entry.label == name for entry in entries)
    if has_own_line or not known or len(known) < len(family):
        return None
    best, _, _ = max(known, key=lambda setting: setting[1].mean)
    return Choice(experiment=entries[0].experiment, name=name, best=best, settings=tuple(known))


def _choice_words(choice: Choice) -> str:
    settings = [
        f"{label} {with_half(held_out, percent)} (test {with_half(test, percent)})"
        for label, held_out, test in choice.settings
    ]
    text = f"{choice.experiment}, {choice.name}: held-out accuracy of {', '.join(settings)}"
    return markdown(f"{text}; {choice.best} is the best and stands in the table.")


def _final(entry: Entry, key: str) -> Estimate | None:
    return estimate(number(run.result, key) for run in entry.counted)
