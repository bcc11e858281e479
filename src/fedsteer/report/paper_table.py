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
from fedsteer.report.formats import (
    MISSING,
    alone,
    count,
    markdown,
    percent,
    points,
    size,
    table,
    with_half,
)
from fedsteer.report.origin import origin
from fedsteer.report.statistics import Estimate, estimate, height
from fedsteer.report.tables import Row, summarise

Published = Mapping[str, Mapping[str, float]]
"""Experiment -> label -> accuracy as printed in the paper."""

ALWAYS = ("experiment", "rule", "ours %")
NOTES = {  # heading -> what to say if the column is there
    "ours %": "Means over seeds; ± is the 95 % interval (Student's t).",
    "vs fedavg": "Differences to fedavg are in points, paired by seed.",
    "last third %": "Last third: the mean over the evaluations of the last third of the rounds.",
    "warm-up rounds": "Warm-up: what a rule spent before the first of its training rounds; "
    "`sent up` counts it.",
    "memory": "Memory is the peak of the server rule, warm-up included.",
}


@dataclass(frozen=True)
class Line:
    """One rule in one experiment."""

    experiment: str
    label: str
    row: Row
    paper: float | None
    chosen: str = ""  # the setting that was chosen, if the rule was run under several


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
    lines, choices = lines_of(known, paper_table.get("paper") or {})
    rows = [_cells(line) for line in lines]
    kept = [
        heading
        for heading in (rows[0] if rows else ())
        if heading in ALWAYS or any(row[heading] != MISSING for row in rows)
    ]
    parts = [
        f"# {markdown(str(paper_table.get('title', 'Results')))}",
        str(paper_table.get("about", "")),
        table(kept, [[row[heading] for heading in kept] for row in rows], ALWAYS[:2]),
        *map(_choice_words, choices),
        numbers,
        " ".join(NOTES[heading] for heading in kept if heading in NOTES),
        origin(known, [str(command) for command in paper_table.get("commands", ())]),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def lines_of(runs: Iterable[Run], published: Published) -> tuple[list[Line], list[Choice]]:
    """Every rule in every experiment, best of ours first, experiments in the paper's order.

    Labels such as "fedstale-0.7" are one rule under several settings. The paper has one line for
    them; ours is the setting with the best accuracy on held-out training images.
    """
    known = list(runs)
    entries = gather(known)
    rows = {(row.experiment, row.label): row for row in summarise(known).rows}
    lines: list[Line] = []
    choices: list[Choice] = []
    for experiment in in_order(sorted({entry.experiment for entry in entries}), published):
        here = [entry for entry in entries if entry.experiment == experiment]
        paper = published.get(experiment, {})
        made = [choice for name in paper if (choice := _choice(name, here)) is not None]
        choices += made
        hidden = {label for choice in made for label, _, _ in choice.settings}
        shown = [
            *((entry.label, entry.label, "") for entry in here if entry.label not in hidden),
            *((choice.name, choice.best, choice.best) for choice in made),
        ]
        found = [
            Line(
                experiment=experiment,
                label=name,
                row=rows[experiment, label],
                paper=paper.get(name),
                chosen=chosen,
            )
            for name, label, chosen in shown
        ]
        lines += sorted(found, key=lambda line: (-height(line.row.accuracy), line.label))
    return lines, choices


def _cells(line: Line) -> dict[str, str]:
    """Heading -> cell."""
    row, difference = line.row, MISSING
    if row.accuracy is not None and line.paper is not None:
        difference = points(row.accuracy.mean - line.paper)
    finished = len(row.seeds)
    return {
        "experiment": line.experiment,
        "rule": line.label + (f" ({line.chosen}, chosen on held-out images)" * bool(line.chosen)),
        "ours %": with_half(row.accuracy, percent),
        "paper %": MISSING if line.paper is None else percent(line.paper),
        "difference": difference,
        "vs fedavg": with_half(row.difference, points),
        "last third %": with_half(row.late, percent),
        "last third vs fedavg": with_half(row.late_difference, points),
        "warm-up rounds": alone(row.warm_up_rounds, count),
        "warm-up uploads": alone(row.warm_up_uploads, count),
        "sent up": alone(row.bytes_up, size),
        "memory": alone(row.server_bytes, size),
        "seeds": f"{finished} of {finished + row.unfinished}" if row.unfinished else str(finished),
    }


def _choice(name: str, entries: Sequence[Entry]) -> Choice | None:
    """The settings of a rule that the paper names without one; None if that is not the case.

    They are chosen on images that are neither trained on nor in the test set. Without such images
    nothing is chosen and every setting keeps its own line.
    """
    family = [entry for entry in entries if entry.label.startswith(f"{name}-")]
    if any(entry.label == name for entry in entries):
        return None
    known = [
        (entry.label, held_out, _final(entry, "accuracy"))
        for entry in family
        if (held_out := _final(entry, "held_out_accuracy")) is not None
    ]
    if not known or len(known) < len(family):
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
