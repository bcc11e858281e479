"""The results as text."""

from typing import Any

from fedsteer.bench.measure import Plan

CLOSE = 1e-5
"""Larger relative distances of the final weights are flagged: the sides did different work."""
HEADER = ("", "threads", "ms a round", "ratio", "95 % interval", "distance")
TITLES = {"fedsteer": "fedsteer", "fedsteer-gpu": "fedsteer, GPU", "plain": "plain PyTorch loop"}


def to_text(found: dict[str, Any]) -> str:
    """What `measure` found. A `ratio` is over fedsteer's time: above 1 fedsteer is faster."""
    plan, workload = Plan(**found["plan"]), found["workload"]
    lead_in = f" after {plan.lead_in} that do not count" if plan.lead_in else ""
    lines = [
        f"({workload['key']}) {workload['title']}",
        f"    median of {plan.repeats} repetitions in turns, {plan.block} round(s) each{lead_in}; "
        f"{plan.warm_up} round(s) of warm-up; weights compared after {plan.rounds} rounds",
    ]
    rows = [HEADER, *map(_cells, found["sides"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        places = zip(row, widths, "<<>>>>", strict=True)
        cells = [f"{cell:{edge}{width}}" for cell, width, edge in places]
        lines.append("  " + "  ".join(cells).rstrip())
    for side in found["sides"]:
        tried = side["tried_seconds_per_round"]
        if len(tried) > 1:
            words = ", ".join(f"{label} {1e3 * seconds:.1f}" for label, seconds in tried.items())
            lines.append(f"  tried for {TITLES[side['name']]} (ms a round): {words}")
    lines.append(f"  the weights themselves moved by {found['moved']:.1e}")
    apart = [TITLES[side["name"]] for side in found["sides"] if not side["distance"] <= CLOSE]
    if apart:
        lines.append(f"  !! final weights differ by more than {CLOSE:.0e}: {', '.join(apart)}")
    return "\n".join(lines)


def _cells(side: dict[str, Any]) -> tuple[str, ...]:
    ratio = side["ratio"]
    version = side["version"].partition(",")[0].partition(" ")[2]
    return (
        f"{TITLES[side['name']]} {version.partition('+')[0]}",
        side["threads"],
        f"{1e3 * side['seconds_per_round']:.1f}",
        "1" if ratio is None else f"{ratio['mean']:.2f}",
        "" if ratio is None else f"{ratio['low']:.2f} to {ratio['high']:.2f}",
        f"{side['distance']:.1e}",
    )
