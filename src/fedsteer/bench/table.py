"""The results as text and as JSON."""

from dataclasses import asdict
from typing import Any

from fedsteer.bench.measure import OURS, Measured, Timed

CLOSE = 1e-5
"""Larger relative distances of the final weights are flagged: the sides did different work."""
HEADER = ("", "threads", "ms a round", "ratio", "95 % interval", "start", "warm-up", "distance")


def to_text(measured: Measured) -> str:
    """A table; `ratio` is a side's time over fedsteer's, so above 1 fedsteer is faster."""
    plan = measured.plan
    rows = [HEADER, *(_cells(measured, timed) for timed in measured.timed)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lead_in = f" after {plan.lead_in} that do not count" if plan.lead_in else ""
    lines = [
        f"({measured.workload.key}) {measured.workload.title}",
        f"    median of {plan.repeats} repetitions in turns, {plan.block} round(s) each{lead_in}; "
        f"{plan.warm_up} round(s) of warm-up; weights compared after {plan.rounds} rounds",
    ]
    for row in rows:
        sides = zip(row, widths, "<<>>>>>>", strict=True)
        cells = [f"{cell:{side}{width}}" for cell, width, side in sides]
        lines.append("  " + "  ".join(cells).rstrip())
    for timed in measured.timed:
        if len(timed.tried) > 1:
            found = ", ".join(f"{label} {1e3 * s:.1f}" for label, s in timed.tried.items())
            lines.append(f"  tried for {timed.side.title} (ms a round): {found}")
    if measured.moved is not None:
        lines.append(f"  the weights themselves moved by {measured.moved:.1e}")
    if measured.idle_load is not None:
        lines.append(f"  cores in use while all sides waited: {measured.idle_load:.0%}")
    lines += [f"  {words}" for words in measured.failures.values()]
    apart = [t.side.title for t in measured.timed if t.distance and not t.distance <= CLOSE]
    if apart:
        lines.append(f"  !! final weights differ by more than {CLOSE:.0e}: {', '.join(apart)}")
    return "\n".join(lines)


def to_json(measured: Measured) -> dict[str, Any]:
    """Everything, including every repetition."""
    return {
        "workload": asdict(measured.workload),
        "plan": asdict(measured.plan),
        "sides": [_side(measured, timed) for timed in measured.timed],
        "failures": measured.failures,
        "idle_load": measured.idle_load,
        "moved": measured.moved,
    }


def _side(measured: Measured, timed: Timed) -> dict[str, Any]:
    ratio = measured.ratio(timed)
    return {
        "name": timed.side.name,
        "version": timed.contestant.facts["version"],
        "threads": _threads(timed),
        "seconds_per_round": timed.median,
        "repetitions": timed.seconds,
        "start_up_seconds": timed.start_up,
        "warm_up_seconds": timed.warm_up,
        "tried_seconds_per_round": timed.tried,
        "distance": timed.distance,
        "ratio": None if ratio is None else asdict(ratio),
    }


def _cells(measured: Measured, timed: Timed) -> tuple[str, ...]:
    ratio = measured.ratio(timed)
    mean = "-" if ratio is None else f"{ratio.mean:.2f}"
    version = timed.contestant.facts["version"].partition(",")[0].partition(" ")[2]
    return (
        f"{timed.side.title} {version.partition('+')[0]}",
        _threads(timed),
        f"{1e3 * timed.median:.1f}",
        "1" if timed.side.name == OURS else mean,
        "" if ratio is None else f"{ratio.low:.2f} to {ratio.high:.2f}",
        f"{timed.start_up:.1f} s",
        f"{timed.warm_up:.1f} s",
        "" if timed.distance is None else f"{timed.distance:.1e}",
    )


def _threads(timed: Timed) -> str:
    return str(timed.contestant.facts.get("threads", timed.variant.label))
