"""The results as text."""

from typing import Any

from fedsteer.bench.measure import Plan

CLOSE = 1e-5
"""Larger relative distances of the final weights are flagged: the sides did different work."""
TITLES = {"fedsteer": "fedsteer", "fedsteer-gpu": "fedsteer, GPU", "plain": "plain PyTorch loop"}
ROW = "  {:<26}  {:<24}  {:>10}  {:>5}  {:>16}  {:>8}"


def to_text(found: dict[str, Any]) -> str:
    """What `measure` found. A `ratio` is over fedsteer's time: above 1 fedsteer is faster."""
    plan, workload = Plan(**found["plan"]), found["workload"]
    lead_in = f" after {plan.lead_in} that do not count" if plan.lead_in else ""
    lines = [
        f"({workload['key']}) {workload['title']}",
        f"    median of {plan.repeats} repetitions in turns, {plan.block} round(s) each{lead_in}; "
        f"{plan.warm_up} round(s) of warm-up; weights compared after {plan.rounds} rounds",
        ROW.format("", "threads", "ms a round", "ratio", "95 % interval", "distance"),
    ]
    after = [f"  the weights themselves moved by {found['moved']:.1e}"]
    for side in found["sides"]:
        title, ratio, tried = TITLES[side["name"]], side["ratio"], side["tried_seconds_per_round"]
        version = side["version"].partition(",")[0].partition(" ")[2].partition("+")[0]
        lines.append(
            ROW.format(
                f"{title} {version}",
                side["threads"],
                f"{1e3 * side['seconds_per_round']:.1f}",
                "1" if ratio is None else f"{ratio['mean']:.2f}",
                "" if ratio is None else f"{ratio['low']:.2f} to {ratio['high']:.2f}",
                f"{side['distance']:.1e}",
            )
        )
        if len(tried) > 1:
            words = ", ".join(f"{label} {1e3 * seconds:.1f}" for label, seconds in tried.items())
            after.append(f"  tried for {title} (ms a round): {words}")
        if not side["distance"] <= CLOSE:
            after.append(f"  !! final weights of {title} differ by more than {CLOSE:.0e}")
    return "\n".join([*lines, *after])
