"""Our numbers beside the published ones.

`fedsteer reproduce` leaves a `sheet.json` beside the runs, which says what table or figure of the
paper they are: `title`, `about`, `commands`, `figure` and `paper`, the published accuracies; for a
matrix also `tuning`, the rates and models chosen, and `ceilings`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsteer.records import Run
from fedsteer.report.entries import Entry, in_order
from fedsteer.report.origin import origin
from fedsteer.report.statistics import Estimate, height
from fedsteer.report.summary import Summary, summarise
from fedsteer.report.tables import MISSING, columns, markdown, percent, points, table, with_half

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

    row: Entry
    label: str
    paper: float | None
    settings: Sequence[Entry] = ()  # that `row` was chosen from


def paper_table_markdown(
    runs: Iterable[Run], paper_table: Mapping[str, Any], numbers: str = "", whole: bool = False
) -> str:
    """What the paper says, the table, how settings were chosen, and where the numbers come from.

    numbers   the table of the paper's figure, if it has one
    whole     these numbers stand alone
    """
    known = list(runs)
    parts = [
        f"# {markdown(str(paper_table.get('title', 'Results')))}",
        str(paper_table.get("about", "")),
        *([numbers] if whole else _beside_the_paper(known, paper_table, numbers)),
        origin(known, [str(command) for command in paper_table.get("commands", ())]),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _beside_the_paper(
    runs: Sequence[Run], paper_table: Mapping[str, Any], numbers: str
) -> list[str]:
    """The table, how settings were chosen, the figure's numbers, and what columns mean."""
    summary = summarise(runs)
    lines = lines_of(summary, paper_table.get("paper") or {})
    rows = [_cells(line, summary) for line in lines]
    shown = {heading for row in rows for heading, cell in row.items() if cell != MISSING}
    kept = [heading for heading in rows[0] if heading in shown.union(ALWAYS)]
    notes = [(text.format(baseline=summary.baseline) for text in note) for note in NOTES.items()]
    return [
        table(kept, [[row[heading] for heading in kept] for row in rows], ALWAYS[:2]),
        *(_choice(line) for line in lines if line.settings),
        numbers,
        markdown(" ".join(words for heading, words in notes if heading in kept)),
    ]


def lines_of(summary: Summary, published: Mapping[str, Mapping[str, float]]) -> list[Line]:
    """Every rule in every experiment, best of ours first, experiments in the paper's order.

    published   experiment -> label -> accuracy as printed in the paper

    Labels such as "fedstale-0.7" are one rule under several settings. The paper has one line for
    them; ours is the setting with the best accuracy on images that are neither trained on nor in
    the test set. Without such images nothing is chosen and every setting keeps its own line.
    """
    lines: list[Line] = []
    for experiment in in_order(sorted(set(summary.experiments)), published):
        rows = {row.label: row for row in summary.rows if row.experiment == experiment}
        paper = published.get(experiment, {})
        found = {
            label: Line(row=row, label=label, paper=paper.get(label)) for label, row in rows.items()
        }
        for name in set(paper) - set(rows):
            settings = [rows[label] for label in sorted(rows) if label.startswith(f"{name}-")]
            if settings and all(_held_out(row) for row in settings):
                best = max(settings, key=lambda row: height(_held_out(row)))
                found[name] = Line(row=best, label=name, paper=paper[name], settings=settings)
                for row in settings:
                    found.pop(row.label, None)
        lines += sorted(found.values(), key=lambda line: (-height(line.row.accuracy), line.label))
    return lines


def _held_out(row: Entry) -> Estimate | None:
    return row.over_seeds("held_out_accuracy")


def _cells(line: Line, summary: Summary) -> dict[str, str]:
    row, difference = line.row, MISSING
    if row.accuracy is not None and line.paper is not None:
        difference = points(row.accuracy.mean - line.paper)
    plain = {column.heading: column.text(row) for column in columns(summary)}
    ours = [heading.format(baseline=summary.baseline) for heading in OURS]
    seeds = f"{row.finished} of {row.finished + row.unfinished}"
    chosen = f" ({row.label}, chosen on held-out images)" if line.settings else ""
    return {
        "experiment": row.experiment,
        "rule": line.label + chosen,
        "ours %": plain.get("accuracy %", MISSING),
        "paper %": MISSING if line.paper is None else percent(line.paper),
        "difference": difference,
        **{heading: plain.get(heading, MISSING) for heading in ours},
        "seeds": seeds if row.unfinished else str(row.finished),
    }


def _choice(line: Line) -> str:
    settings = [
        f"{row.label} {with_half(_held_out(row), percent)} "
        f"(test {with_half(row.accuracy, percent)})"
        for row in line.settings
    ]
    return markdown(
        f"{line.row.experiment}, {line.label}: held-out accuracy of {', '.join(settings)}; "
        f"{line.row.label} is the best and stands in the table."
    )
