"""The results as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.peers.measure import Side

from fedsteer.bench.measure import OURS, Plan
from fedsteer.bench.table import CLOSE

HEADER = ("", "threads", "ms a round", "ratio", "95 % interval", "start", "warm-up", "distance")


def to_text(found: dict[str, Any], sides: Sequence[Side]) -> str:
    """What `measure` found. A `ratio` is over fedsteer's time: above 1 fedsteer is faster."""
    titles = {side.name: side.title for side in sides}
    plan, workload = Plan(**found["plan"]), found["workload"]
    lead_in = f" after {plan.lead_in} that do not count" if plan.lead_in else ""
    lines = [
        f"({workload['key']}) {workload['title']}",
        f"    median of {plan.repeats} repetitions in turns, {plan.block} round(s) each{lead_in}; "
        f"{plan.warm_up} round(s) of warm-up; weights compared after {plan.rounds} rounds",
    ]
    rows = [HEADER, *(_cells(side, titles[side["name"]]) for side in found["sides"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        places = zip(row, widths, "<<>>>>>>", strict=True)
        cells = [f"{cell:{edge}{width}}" for cell, width, edge in places]
        lines.append("  " + "  ".join(cells).rstrip())
    for side in found["sides"]:
        tried = side["tried_seconds_per_round"]
        if len(tried) > 1:
            words = ", ".join(f"{label} {1e3 * seconds:.1f}" for label, seconds in tried.items())
            lines.append(f"  tried for {titles[side['name']]} (ms a round): {words}")
    if found["moved"] is not None:
        lines.append(f"  the weights themselves moved by {found['moved']:.1e}")
    if found["idle_load"] is not None:
        lines.append(f"  cores in use while all sides waited: {found['idle_load']:.0%}")
    lines += [f"  {words}" for words in found["failures"].values()]
    apart = [titles[side["name"]] for side in found["sides"] if not side["distance"] <= CLOSE]
    if apart:
        lines.append(f"  !! final weights differ by more than {CLOSE:.0e}: {', '.join(apart)}")
    return "\n".join(lines)


def _cells(side: dict[str, Any], title: str) -> tuple[str, ...]:
    ratio = side["ratio"]
    mean = "-" if ratio is None else f"{ratio['mean']:.2f}"
    version = side["version"].partition(",")[0].partition(" ")[2]
    return (
        f"{title} {version.partition('+')[0]}",
        side["threads"],
        f"{1e3 * side['seconds_per_round']:.1f}",
        "1" if side["name"] == OURS else mean,
        "" if ratio is None else f"{ratio['low']:.2f} to {ratio['high']:.2f}",
        f"{side['start_up_seconds']:.1f} s",
        f"{side['warm_up_seconds']:.1f} s",
        f"{side['distance']:.1e}",
    )
