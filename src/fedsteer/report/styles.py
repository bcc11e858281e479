"""Colour, dash and marker of each rule, the same in every picture and on the page.

The colours are seven of the Okabe-Ito palette, which colour-blind readers can tell apart (its
yellow is too faint on white). A rule keeps its colour from report to report. Presets and variants
share it and differ in the dash.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fedsteer.report.entries import FULL, Entry

# vermillion, black, blue, green, orange, purple, sky blue
LIGHT = ("#d55e00", "#1d1f22", "#0072b2", "#009e73", "#e69f00", "#cc79a7", "#56b4e9")
DARK = ("#ff7d26", "#eef0f2", "#3d8bfd", "#16c294", "#f5b72e", "#e394c0", "#8fd3ff")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
SLOTS = tuple((colour, dash) for dash in range(len(DASHES)) for colour in range(len(LIGHT)))
PREFERRED = {
    "fedsteer": (0, 0),
    "fedavg": (1, 0),
    "fedvarp": (2, 0),
    "mifa": (3, 0),
    "fedstale": (4, 0),
    "fedprox": (5, 0),
    "scaffold": (6, 0),
    "cluster_fedvarp": (2, 1),
    "fedawe": (3, 1),
    FULL: (1, 2),
}
FREE = tuple(slot for slot in SLOTS if slot not in PREFERRED.values())


@dataclass(frozen=True)
class Style:
    """How a rule is drawn; the names of dashes and markers are plotly's."""

    colour: int  # index into LIGHT and DARK
    dash: str
    marker: str


def styles(entries: Iterable[Entry]) -> dict[str, Style]:
    """A style per label; no two are alike until all are taken."""
    rules = {entry.label: entry.rule for entry in entries}
    found: dict[str, Style] = {}
    taken: list[tuple[int, int]] = []
    for label in sorted(rules):
        own = []
        if rules[label] in PREFERRED:
            colour, first = PREFERRED[rules[label]]
            own = [(colour, (first + step) % len(DASHES)) for step in range(len(DASHES))]
        open_slots = (slot for slot in (*own, *FREE, *SLOTS) if slot not in taken)
        taken.append(next(open_slots, SLOTS[len(taken) % len(SLOTS)]))
        colour, dash = taken[-1]
        marker = MARKERS[(colour + 2 * dash) % len(MARKERS)]
        found[label] = Style(colour=colour, dash=DASHES[dash], marker=marker)
    return found
