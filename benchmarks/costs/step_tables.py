"""The report of the server-step benchmark as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costs.step_parts import FULL

MATRIX = " put into a matrix"
GOAL_STEP = 1.3  # FedSteer's step over the three products it cannot avoid
GOAL_POPULATION = 1.2  # a million clients over a hundred
GOAL_SEARCH = 0.1  # seconds
GOAL_OVERHEAD = 1e-3  # seconds


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def verdict(value: float, goal: float, scale: dict[str, Any]) -> str:
    """Whether a goal is met; at the tiny sizes of --quick that would mean nothing."""
    if scale != vars(FULL):
        return "-"
    return "met" if value <= goal else "missed"


def show(results: dict[str, Any]) -> str:
    """The whole report as text."""
    parts = (show_steps, show_population, show_search, show_scaling)
    return "\n\n".join(part(results) for part in parts)


def show_steps(results: dict[str, Any]) -> str:
    scale = results["scale"]
    heads = ["1 core", "all core", "goal", "list", "stacked", "FedAvg/sum", "d=100", "goal"]
    rows = [["", "3 products", *heads]]
    for row in results["rows"]:
        step = row["step"]
        base = step["three products"]
        ratios = [step[f"fedsteer, {which} core"] / base for which in ("1", "all")]
        rows.append(
            [
                f"{row['library']}, {row['threads']} thread{'s' * (row['threads'] > 1)}",
                f"{1e3 * base:.1f} ms",
                *(f"{ratio:.2f}" for ratio in ratios),
                verdict(max(ratios), GOAL_STEP, scale),
                *(f"{step[f'fedsteer, a list{how}'] / base:.2f}" for how in ("", MATRIX)),
                f"{step['fedavg'] / step['bare sum']:.2f}",
                f"{1e3 * step['overhead']:.2f} ms",
                verdict(step["overhead"], GOAL_OVERHEAD, scale),
            ]
        )
    head = (
        f"(a) FedSteer's step over the products c@H, a@G, H@G.T; d={scale['dim']:,} "
        f"k={scale['columns']} m={scale['active']} N={scale['clients']}, float32\n"
        f"    goals: at most {GOAL_STEP}; without d less than {1e3 * GOAL_OVERHEAD:g} ms\n"
        f"    list: one core client, updates one by one; stacked: put into a matrix by the caller"
    )
    return f"{head}\n{table(rows)}"


def show_population(results: dict[str, Any]) -> str:
    scale = results["scale"]
    rows = [["", "time", "goal", "state MB", "resident MB", "kd+Nk MB", "FedVARP Nd MB"]]
    for row in results["rows"]:
        found = row["population"]
        ratio = found["many"] / found["few"]
        held = found["resident bytes"]
        rows.append(
            [
                f"{row['library']}, {row['threads']} thread{'s' * (row['threads'] > 1)}",
                f"{ratio:.2f}",
                verdict(ratio, GOAL_POPULATION, scale),
                f"{found['state bytes'] / 1e6:.1f}",
                "?" if held is None else f"{held / 1e6:.1f}",
                f"{found['kd + Nk bytes'] / 1e6:.1f}",
                f"{found['Nd bytes'] / 1e6:,.0f}",
            ]
        )
    head = (
        f"(b) the step at N={scale['many_clients']:,} over N={scale['clients']}, and its memory "
        f"(FedVARP's computed)\n    goal: at most {GOAL_POPULATION}"
    )
    return f"{head}\n{table(rows)}"


def show_search(results: dict[str, Any]) -> str:
    scale, found = results["scale"], results["search"]
    rows = [
        ["", "seconds", "goal"],
        [
            f"all swaps at once, {found['swaps made']} made",
            f"{found['search']:.4f}",
            verdict(found["search"], GOAL_SEARCH, scale),
        ],
        ["solving anew for each swap", f"{found['brute']:.4g}", ""],
        ["ratio", f"{found['brute'] / found['search']:,.0f}", ""],
    ]
    head = (
        f"(c) core-set search from a Gram matrix; N={scale['search_clients']} "
        f"k={scale['search_columns']}, at most {scale['swaps']} swaps\n"
        f"    goal: {GOAL_SEARCH} s; the second row is scaled up from {scale['brute_sample']} "
        f"swaps at {1e6 * found['brute swap']:.0f} us each"
    )
    return f"{head}\n{table(rows)}"


def show_scaling(results: dict[str, Any]) -> str:
    step, seek_ = results["scaling"]["step"], results["scaling"]["search"]
    claims = [
        ("step time over d", "O(k^2 d + k^3): 1", step["d"]),
        ("step time over k", "O(k^2 d + k^3): 2", step["k"]),
        ("step time over m", "not counted", step["m"]),
        ("step time over N", "0", step["N"]),
        ("search time over N", "O(T0 I N k): 1", seek_["N"]),
        ("search time over k", "O(T0 I N k): 1", seek_["k"]),
    ]
    rows = [["", "paper", "measured", "range"]]
    for what, claim, found in claims:
        sizes = [int(size) for size in found["seconds"]]
        rows.append([what, claim, f"{found['slope']:.2f}", f"{sizes[0]:,} to {sizes[-1]:,}"])
    sizes = results["rows"][0]["population"]
    share = sizes["state bytes"] / sizes["kd + Nk bytes"]
    rows.append(["memory", "O(N k + k d)", f"{share:.2f} x", "(b)"])
    return f"(d) exponents, slopes of log time over log size (NumPy, 1 thread)\n{table(rows)}"
