"""Colour, dash and marker of each rule.

Seven colours of the Okabe-Ito palette (safe for colour-blind eyes; its yellow is too faint on
white), told apart further by dashes. A rule keeps its colour from report to report; its presets
and variants share the colour and differ in the dash.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedsteer.report.entries import FULL, Entry

COLOURS = 7  # vermillion, black, blue, green, orange, purple, sky; assets/plots.js has their codes
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
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


def styles(entries: Sequence[Entry]) -> list[dict[str, str | int]]:
    """A style per entry, in their order; no two alike while there are styles left."""
    taken: dict[int, tuple[int, int]] = {}
    order = sorted(range(len(entries)), key=lambda i: (entries[i].experiment, entries[i].label))
    for index in order:
        used = set(taken.values())
        colour, dash = PREFERRED.get(entries[index].rule, (None, 0))
        slots = [(c, d) for d in range(len(DASHES)) for c in range(COLOURS)]
        if colour is not None:
            own = [(colour, (dash + step) % len(DASHES)) for step in range(len(DASHES))]
            slots = own + slots
        else:  # leave the colours of well-known rules to them
            slots = [slot for slot in slots if slot not in PREFERRED.values()] + slots
        taken[index] = next((slot for slot in slots if slot not in used), slots[index % len(slots)])
    return [
        {
            "colour": taken[index][0],
            "dash": DASHES[taken[index][1]],
            "marker": MARKERS[(taken[index][0] + 2 * taken[index][1]) % len(MARKERS)],
        }
        for index in range(len(entries))
    ]
