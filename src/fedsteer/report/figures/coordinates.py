"""Heat maps of the coordinates of watched clients, and how stable the coordinates are."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.records import Run
from fedsteer.report.curves import thinned, watched
from fedsteer.report.entries import gather, named
from fedsteer.report.figures.plotting import Figure, SubFigure
from fedsteer.report.statistics import estimate
from fedsteer.report.styles import LIGHT
from fedsteer.report.tables import hundredths, table, with_half

ROUNDS = 75  # drawn; of 150 every second
REACH = 99  # percent of the values that the colours cover
APART = 10  # rounds between the coordinates that are compared
HEIGHT = 1.9  # inches of a row
SHADES = 51
Floats = NDArray[np.float64]


def heatmap_figure(runs: Iterable[Run], sheet: Mapping[str, Any]) -> Figure | None:
    """A row per rule (first seed), a column per watched client.

    The colours cover 99 in 100 values of the row, because a single large one would leave the
    others pale. Larger values have the last colour. The table says how alike a client's coordinates
    are some rounds apart, and those of different clients.
    """
    known = {}  # rule -> per seed, clients and values
    for name, entry in named(gather(runs)).items():
        if seeds := [found for found in map(watched, entry.shown) if found is not None]:
            known[name] = seeds
    if not known:
        return None

    def draw(figure: SubFigure) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        shades = LinearSegmentedColormap.from_list("", [LIGHT[2], "#ffffff", LIGHT[0]], SHADES)
        rows = np.atleast_1d(np.array(figure.subfigures(len(known), 1), object))
        for row, (name, seeds) in zip(rows, known.items(), strict=True):
            clients, values = seeds[0]
            kept = thinned(range(len(values)), ROUNDS)
            reach = float(np.nanpercentile(np.abs(values[kept]), REACH)) or 1.0
            grid = row.subplots(1, len(clients), squeeze=False, sharey=True)[0]
            for place, (axes, client) in enumerate(zip(grid, clients, strict=True)):
                image = axes.imshow(
                    values[kept, place].T,
                    cmap=shades,
                    vmin=-reach,
                    vmax=reach,
                    aspect="auto",
                    interpolation="none",
                    extent=(0.5, len(values) + 0.5, values.shape[2] + 0.5, 0.5),
                )
                axes.grid(visible=False)
                axes.set_title(f"client {client}", weight="normal")
                if row is rows[-1]:
                    axes.set_xlabel("training rounds")
            grid[0].set_ylabel("coordinate")
            row.suptitle(name, x=0.01, ha="left", size=10)
            row.colorbar(image, ax=grid, extend="both", aspect=12)

    lines = []
    for name, seeds in known.items():
        every = [values for _, values in seeds]
        own = estimate(_mean_cosine(one[APART:], one[:-APART]) for one in every)
        pairs = [(one, np.roll(one, 1, axis=1)) for one in every if one.shape[1] > 1]
        others = estimate(_mean_cosine(one, other) for one, other in pairs)
        cosines = [with_half(found, hundredths, hundredths) for found in (own, others)]
        lines.append([name, *cosines, str(len(seeds))])
    headings = ["rule", f"own, {APART} rounds apart", "another client's", "seeds"]
    note = "Mean cosine between coordinates of the watched clients; 1 is the same direction."
    return Figure(
        table=f"{table(headings, lines, ['rule'])}\n{note}\n",
        height=0.4 + HEIGHT * len(known),
        draw=draw,
    )


def _mean_cosine(one: Floats, other: Floats) -> float | None:
    sizes = np.linalg.norm(one, axis=2) * np.linalg.norm(other, axis=2)
    known = np.isfinite(sizes) & (sizes > 0)  # a client that was never there has no coordinates
    if not known.any():
        return None
    return float((np.sum(one * other, axis=2)[known] / sizes[known]).mean())
