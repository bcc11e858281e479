"""How wrong the server's picture of a client is when the client comes back.

reused       what the rule held: old coordinates on today's basis, or the plain stale update
recomputed   coordinates computed from the very update: the best today's basis can do
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fedsteer.records import Run
from fedsteer.report.entries import gather, named
from fedsteer.report.figures import plotting
from fedsteer.report.statistics import Estimate
from fedsteer.report.styles import Style, styles
from fedsteer.report.tables import hundredths, table, with_half
from fedsteer.report.visits import SPAN, bin_centre, bin_words, mean_errors, read_visits


def errors_figure(runs: Iterable[Run], sheet: Mapping[str, Any]) -> plotting.Figure | None:
    """Relative error over staleness and over training rounds; the table, over staleness."""
    if not (series := _series(runs)):
        return None
    means = [e.mean for _, _, errors in series for bins in errors.values() for e in bins.values()]
    low, high = max(min(means), 1e-4) / 1.3, max(*means, 1.0) * 1.3

    def draw(figure: plotting.SubFigure) -> None:
        by_staleness, by_round = figure.subplots(1, 2, sharey=True)
        for axes, axis, place in (
            (by_staleness, "staleness", bin_centre),
            (by_round, "round", lambda at: SPAN * (at + 0.5)),
        ):
            for _, style, errors in series:
                bins = errors[axis].items()
                line = [(place(at), error.mean, error.half or 0.0) for at, error in bins]
                plotting.draw_line(axes, line, style)
            axes.axhline(1, color=plotting.MUTED, linestyle="--", linewidth=1)
        by_staleness.set_yscale("log")
        by_staleness.set_ylim(low, high)
        by_staleness.set_ylabel("squared error; 1 is knowing nothing")
        by_staleness.set_xscale("log")
        by_staleness.set_xlim(left=1)
        by_staleness.set_xlabel("rounds since the last visit")
        by_round.set_xlim(left=0)
        by_round.set_xlabel("training rounds")
        plotting.set_log_ticks(by_staleness.xaxis)
        plotting.set_log_ticks(by_staleness.yaxis)
        plotting.add_legend(figure, [(name, style) for name, style, _ in series])

    rows = []
    by_rule = [errors["staleness"] for _, _, errors in series]
    for at in sorted({at for bins in by_rule for at in bins}):
        found = [bins.get(at) for bins in by_rule]
        rows.append([bin_words(at), *(with_half(e, hundredths, hundredths) for e in found)])
    note = (
        "Squared error of the server's estimate of an update, relative to the update's squared "
        "length: 1 is what knowing nothing gives. Means over clients, then over seeds, ± 95 %."
    )
    numbers = table(["rounds away", *(name for name, _, _ in series)], rows, words=())
    return plotting.Figure(table=f"{numbers}\n{note}\n", height=4.0, draw=draw)


def _series(runs: Iterable[Run]) -> list[tuple[str, Style, dict[str, dict[int, Estimate]]]]:
    """Both kinds of error, by axis and bin, of every rule whose rows of clients are there."""
    entries = gather(runs)
    looks = styles(entries)
    found = []
    for name, entry in named(entries).items():
        visits = [read_visits(run) for run in entry.shown]
        reused = looks[entry.label]
        recomputed = replace(reused, dash="dot" if reused.dash == "solid" else "dashdot")
        for column, words, style in (
            ("relative_error", "", reused),
            ("refreshed_error", ", recomputed", recomputed),
        ):
            errors = {axis: mean_errors(visits, column, axis) for axis in ("staleness", "round")}
            if errors["staleness"]:
                found.append((name + words, style, errors))
    return found
