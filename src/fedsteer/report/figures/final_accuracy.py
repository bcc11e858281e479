"""Final accuracy: over the size of the core set, or of one experiment under many settings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsteer.records import Run
from fedsteer.records.files import look, number
from fedsteer.report.entries import gather, in_order
from fedsteer.report.figures import plotting
from fedsteer.report.statistics import estimate
from fedsteer.report.styles import LIGHT, Style, styles
from fedsteer.report.tables import MISSING, percent, points, table, with_half

LINE = 0.31  # inches per setting
ASIDE = 0.3  # points between seeds of the same accuracy, so that all can be seen


def core_size_figure(runs: Iterable[Run], sheet: Mapping[str, Any]) -> plotting.Figure | None:
    """One line per ridge; the table has the difference of two ridges paired by seed."""
    found: dict[tuple[float, int], dict[int, float]] = {}  # ridge and size -> seed -> accuracy
    for entry in gather(runs):
        options = look(entry.runs[0].manifest, "rule", "options")
        size, ridge = number(options, "core_size"), number(options, "ridge")
        pairs = [(run.seed, number(run.result, "accuracy")) for run in entry.counted]
        known = {seed: value for seed, value in pairs if seed is not None and value is not None}
        if size is not None and ridge is not None and known:
            found[ridge, int(size)] = known
    if not found:
        return None
    ridges = sorted({ridge for ridge, _ in found}, reverse=True)
    sizes = sorted({size for _, size in found})

    def draw(figure: plotting.SubFigure) -> None:
        axes = figure.subplots()
        names = []
        for place, ridge in enumerate(ridges):
            style = Style(colour=place % len(LIGHT), dash="solid", marker="circle")
            means = [(size, estimate(found.get((ridge, size), {}).values())) for size in sizes]
            line = [(size, 100 * one.mean, 100 * (one.half or 0.0)) for size, one in means if one]
            plotting.draw_line(axes, line, style, marker="o")
            names.append((f"ridge {ridge:g}", style))
        axes.set_xlim(left=0)
        axes.set_xlabel("clients in the core set")
        axes.set_ylabel("final test accuracy in %")
        plotting.add_legend(figure, names)

    headings = ["core set", *(f"ridge {ridge:g} %" for ridge in ridges)]
    headings += ["difference"] if len(ridges) == 2 else []
    rows = []
    for size in sizes:
        here = [found.get((ridge, size), {}) for ridge in ridges]
        cells = [with_half(estimate(seeds.values()), percent) for seeds in here]
        if len(here) == 2:
            first, second = here
            apart = estimate(first[seed] - second[seed] for seed in sorted(first) if seed in second)
            cells.append(with_half(apart, points))
        rows.append([str(size), *cells])
    return plotting.Figure(table=table(headings, rows, words=()), height=4.0, draw=draw)


def settings_figure(runs: Iterable[Run], sheet: Mapping[str, Any]) -> plotting.Figure | None:
    """A line per setting, from top to bottom, a dot per rule and seed.

    Under some settings a run either trains or falls to chance; a mean with an interval would hide
    that.
    """
    entries = gather(runs)
    found = {}  # (setting, rule) -> accuracy of every seed
    for entry in entries:
        known = [number(run.result, "accuracy") for run in entry.counted]
        if values := [value for value in known if value is not None]:
            found[entry.experiment, entry.label] = values
    if not found:
        return None
    names = in_order(sorted({name for name, _ in found}), sheet.get("paper") or ())
    looks = dict(sorted(styles(entries).items()))

    def draw(figure: plotting.SubFigure) -> None:
        axes = figure.subplots()
        for shift, (label, style) in enumerate(looks.items()):
            # Rules stand one below the other, so that equal accuracies can all be seen.
            below = (shift - (len(looks) - 1) / 2) * 0.8 / len(looks)
            points = [
                (100 * accuracy + ASIDE * seed, place + below)
                for place, name in enumerate(names)
                for seed, accuracy in enumerate(found.get((name, label), ()))
            ]
            axes.plot(*np.reshape(points, (-1, 2)).T, clip_on=False, **plotting.dots(style))
        axes.set_xlim(0, 100)
        axes.set_xlabel("final test accuracy in %, one dot per seed")
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), names, color=plotting.INK)
        axes.grid(visible=False, axis="y")
        axes.hlines(np.arange(len(names)) + 0.5, 0, 100, color=plotting.GRID, linewidth=0.8)
        plotting.add_legend(figure, looks.items(), dotted=True)

    def cell(values: Sequence[float]) -> str:
        each = ", ".join(f"{100 * value:.0f}" for value in values)
        return f"{percent(sum(values) / len(values))} ({each})" if values else MISSING

    labels = sorted({label for _, label in found})
    rows = [[name, *(cell(found.get((name, label), ())) for label in labels)] for name in names]
    note = "Final accuracy in %: the mean, and in brackets every seed."
    return plotting.Figure(
        table=f"{table(['setting', *labels], rows, ['setting'])}\n{note}\n",
        height=plotting.MARGIN + LINE * max(len(names), len(looks)),
        draw=draw,
    )
