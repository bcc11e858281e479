"""Our figures beside the published ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedsteer.records import Run
from fedsteer.report.entries import Entry, gather, number
from fedsteer.report.statistics import Estimate, estimate

Published = Mapping[str, Mapping[str, float]]
"""Experiment -> label -> accuracy as printed in the paper."""


@dataclass(frozen=True)
class Line:
    """One rule in one experiment."""

    experiment: str
    label: str
    ours: Estimate | None
    paper: float | None
    note: str


def lines_of(runs: Iterable[Run], published: Published) -> list[Line]:
    """Every rule in every experiment, in the order of the experiments.

    Labels such as "fedstale-0.7" are one rule under several settings: of those the paper has one
    line, and ours is the setting with the best accuracy on held-out training images.
    """
    entries = gather(runs)
    lines: list[Line] = []
    for experiment in dict.fromkeys(entry.experiment for entry in entries):
        here = [entry for entry in entries if entry.experiment == experiment]
        paper = published.get(experiment, {})
        families = {
            name: [e for e in here if e.label.startswith(f"{name}-")]
            for name in paper
            if not any(e.label == name for e in here)
        }
        chosen = {name: _best(family) for name, family in families.items() if family}
        for entry in here:
            name = next((n for n, best in chosen.items() if best is entry), None)
            if name is None and any(entry in family for family in families.values()):
                continue
            note = f"{entry.label}, chosen on held-out images" if name else ""
            label = name or entry.label
            lines.append(Line(experiment, label, _final(entry), paper.get(label), note))
    return lines


def to_published_markdown(lines: list[Line]) -> str:
    """A Markdown table, one block per experiment, best of ours first."""
    rows = [
        "| experiment | rule | ours % | paper % | difference |",
        "| :-- | :-- | --: | --: | --: |",
    ]
    order = list(dict.fromkeys(line.experiment for line in lines))
    ranked = sorted(
        lines, key=lambda x: (order.index(x.experiment), -(x.ours.mean if x.ours else -1.0))
    )
    for line in ranked:
        ours = "-" if line.ours is None else f"{100 * line.ours.mean:.1f}"
        if line.ours is not None and line.ours.half is not None:
            ours += f" ± {100 * line.ours.half:.1f}"
        paper = "-" if line.paper is None else f"{100 * line.paper:.1f}"
        apart = "-"
        if line.ours is not None and line.paper is not None:
            apart = f"{100 * (line.ours.mean - line.paper):+.1f}"
        label = line.label + (f" ({line.note})" if line.note else "")
        rows.append(f"| {line.experiment} | {label} | {ours} | {paper} | {apart} |")
    return "\n".join(rows) + "\n"


def _final(entry: Entry) -> Estimate | None:
    return estimate(number(run.result or {}, "accuracy") for run in entry.counted)


def _best(family: list[Entry]) -> Entry:
    """Chosen on images that no client trains on and the test set does not hold."""

    def held_out(entry: Entry) -> float:
        found = estimate(number(run.result or {}, "held_out_accuracy") for run in entry.counted)
        return -1.0 if found is None else found.mean

    return max(family, key=held_out)
