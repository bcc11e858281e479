"""Coordinates of watched clients over the rounds: the paper's heat maps, and how stable they are.

Each picture is an image of one pixel per coordinate and round, embedded in the SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.report.curves import thinned
from fedsteer.report.entries import Entry, gather, names_of
from fedsteer.report.formats import bars, hundredths, markdown, with_half
from fedsteer.report.png import embedded
from fedsteer.report.statistics import estimate
from fedsteer.report.svg import document, text

ROUNDS = 75  # drawn; of 150 every second
REACH = 99  # percent of the sizes lie within the colours
APART = 10  # rounds between the coordinates that are compared
WIDTH, HEIGHT, GAP, TOP, LEFT = 250, 130, 14, 62, 16
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Watched:
    """Coordinates in one run: (rounds, clients, k)."""

    clients: list[str]
    values: Floats


def heatmaps_svg(runs: Iterable[Run], title: str) -> str:
    """A row per rule (first seed), a column per watched client.

    Colours reach to what 99 in 100 values of the row stay below: a single large one would leave
    the others pale. What is larger has the last colour.
    """
    entries = gather(runs)
    known = [
        (name, watched)
        for name, entry in zip(names_of(entries), entries, strict=True)
        if (watched := next(iter(_watched(entry)), None)) is not None
    ]
    if not known:
        raise DataError("no run has coordinates of watched clients: there is nothing to draw")
    parts = []
    abreast = max(len(watched.clients) for _, watched in known)
    for row, (name, watched) in enumerate(known):
        top = TOP + row * (HEIGHT + 58)
        shown = watched.values[thinned(len(watched.values), ROUNDS)]
        reach = float(np.nanpercentile(np.abs(shown), REACH)) or 1.0
        rounds = len(watched.values)
        words = (
            f"{name}: {shown.shape[2]} coordinates, red positive, blue negative, "
            f"full colour at {reach:.2g} and beyond"
        )
        parts.append(text(LEFT, top, words, weight=600))
        for column, client in enumerate(watched.clients):
            left = LEFT + column * (WIDTH + GAP)
            image = embedded(np.nan_to_num(shown[:, column, :].T / reach))
            parts.append(
                f'<image x="{left}" y="{top + 10}" width="{WIDTH}" height="{HEIGHT}" '
                f'preserveAspectRatio="none" style="image-rendering:pixelated" href="{image}"/>'
            )
            below = f"client {client}, training rounds 1 to {rounds}"
            parts.append(text(left, top + HEIGHT + 24, below, colour="#555", size=11))
    width = 2 * LEFT + abreast * (WIDTH + GAP) - GAP
    return document(width, TOP + len(known) * (HEIGHT + 58) - 14, title, parts)


def heatmaps_markdown(runs: Iterable[Run]) -> str:
    """How alike a client's coordinates are some rounds apart, and those of different clients."""
    entries = gather(runs)
    headings = ["rule", f"own, {APART} rounds apart", "another client's", "seeds"]
    lines = [bars(headings), bars([":--", *["--:"] * 3])]
    for name, entry in zip(names_of(entries), entries, strict=True):
        watched = _watched(entry)
        if watched:
            values = [one.values for one in watched]
            both = estimate(map(_own, values)), estimate(map(_others, values))
            cosines = [with_half(one, hundredths, hundredths) for one in both]
            lines.append(bars([markdown(name), *cosines, str(len(watched))]))
    note = "Mean cosine between coordinates of the watched clients; 1 is the same direction."
    return "\n".join([*lines, "", note]) + "\n"


def _watched(entry: Entry) -> list[Watched]:
    found = []
    for run in entry.shown:
        values, names = run.arrays.get("coordinates"), run.arrays.get("watched")
        if values is None or values.ndim != 3 or not values.size:
            continue
        clients: Sequence[Any] = range(values.shape[1]) if names is None else names.tolist()
        found.append(Watched([str(client) for client in clients], values.astype(np.float64)))
    return found


def _own(values: Floats) -> float | None:
    return _mean_cosine(values[APART:], values[:-APART])


def _others(values: Floats) -> float | None:
    return _mean_cosine(values, np.roll(values, 1, axis=1)) if values.shape[1] > 1 else None


def _mean_cosine(one: Floats, other: Floats) -> float | None:
    sizes = np.linalg.norm(one, axis=2) * np.linalg.norm(other, axis=2)
    known = np.isfinite(sizes) & (sizes > 0)  # a client that was never there has no coordinates
    if not known.any():
        return None
    return float((np.sum(one * other, axis=2)[known] / sizes[known]).mean())
