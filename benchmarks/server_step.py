"""What a server step costs: time against bare matrix products, memory, scaling.

    python benchmarks/server_step.py [--quick] [--out FILE.json]

Everything printed is a ratio of medians of interleaved repetitions in one process, so that a busy
or slow machine disturbs both sides alike. Each library and number of threads gets a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedsteer import Round, Rule, State, make_rule
from fedsteer.steering.coreset import Snapshot, search

GOAL_STEP = 1.3  # FedSteer's step over the three products it cannot avoid
GOAL_POPULATION = 1.2  # a million clients over a hundred
GOAL_SEARCH = 0.1  # seconds
GOAL_OVERHEAD = 1e-3  # seconds


@dataclass(frozen=True)
class Scale:
    """Sizes of everything measured."""

    dim: int = 1_600_000
    columns: int = 10  # k
    active: int = 10  # m
    clients: int = 100  # N
    many_clients: int = 1_000_000
    repeats: int = 31
    threads: tuple[int, ...] = (1, 2)
    search_clients: int = 1_000
    search_columns: int = 40
    swaps: int = 5
    brute_sample: int = 200
    sweep_repeats: int = 9
    dims: tuple[int, ...] = (200_000, 400_000, 800_000, 1_600_000, 3_200_000)
    widths: tuple[int, ...] = (5, 10, 20, 40)  # k, and m
    populations: tuple[int, ...] = (100, 1_000, 10_000, 100_000, 1_000_000)
    search_populations: tuple[int, ...] = (250, 500, 1_000, 2_000)
    search_widths: tuple[int, ...] = (10, 20, 40, 80)


FULL = Scale()
QUICK = Scale(
    dim=3_000,
    many_clients=1_000,
    repeats=3,
    threads=(1,),
    search_clients=60,
    search_columns=8,
    brute_sample=10,
    sweep_repeats=2,
    dims=(1_000, 2_000),
    widths=(2, 4),
    populations=(100, 200),
    search_populations=(40, 80),
    search_widths=(4, 8),
)


# -- measuring ---------------------------------------------------------------------------------


def medians(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, taken in turns: one of each, `repeats` times."""
    for function in functions.values():
        function()
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


class Server:
    """A rule that takes the same round again and again."""

    def __init__(
        self, rule: Rule, clients: int, updates: Any, active: Sequence[int], first: Sequence[int]
    ) -> None:
        self.rule = rule
        self.state: State = rule.init(updates.shape[1], np.ones(clients))
        self.number = 0
        self.updates = updates
        self.take(first)  # so that every column is there
        self.active = list(active)

    def take(self, clients: Sequence[int]) -> None:
        self.number += 1
        updates = self.updates[: len(clients)]
        round = Round(self.number, clients, updates, np.full(len(clients), 0.1))
        self.state = self.rule.step(self.state, round).state

    def __call__(self) -> None:
        self.take(self.active)


def steering(
    clients: int, columns: int, active: int, core: int, updates: Any, spread: bool = False
) -> Server:
    """FedSteer with `core` of its `columns` core clients among the `active` ones of each round."""
    outsiders = np.arange(columns, columns + active - core)
    if spread:
        outsiders = np.linspace(columns, clients - 1, active - core).astype(int)
    rule = make_rule("fedsteer", core_set=tuple(range(columns)))
    chosen = [*range(core), *outsiders.tolist()]
    return Server(rule, clients, updates, chosen, range(columns))


def make_updates(library: str, rows: int, dim: int) -> Any:
    updates = np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32)
    if library == "numpy":
        return updates
    import torch

    return torch.from_numpy(updates)


def three_products(server: Server, library: str) -> dict[str, Callable[[], object]]:
    """What no implementation can avoid, on the very arrays of the server, and the bare sum."""
    basis = server.state.memory.own.subspace.rows  # type: ignore[attr-defined]
    updates = server.updates[: len(server.active)]
    c, a = np.full(len(basis), 0.1, np.float32), np.full(len(updates), 0.1, np.float32)
    if library == "torch":
        import torch

        c, a = torch.from_numpy(c), torch.from_numpy(a)
    return {
        "three products": lambda: (c @ basis, a @ updates, basis @ updates.T),
        "bare sum": lambda: a @ updates,
    }


def measure_step(scale: Scale, library: str) -> dict[str, Any]:
    """(a) a whole step against c @ H, a @ G and H @ G.T."""
    updates = make_updates(library, max(scale.columns, scale.active), scale.dim)
    sizes = (scale.clients, scale.columns, scale.active)
    one, every = steering(*sizes, 1, updates), steering(*sizes, scale.active, updates)
    plain = Server(make_rule("fedavg"), scale.clients, updates, one.active, one.active)
    functions = three_products(one, library) | {
        "fedsteer, 1 core": one,
        "fedsteer, all core": every,
        "fedavg": plain,
    }
    small = steering(*sizes, scale.active, make_updates(library, len(updates), 100))
    overhead = medians({"overhead": small}, 20 * scale.repeats)
    return medians(functions, scale.repeats) | overhead


def measure_population(scale: Scale, library: str) -> dict[str, Any]:
    """(b) the same step with very many clients, and the memory it holds."""
    updates = make_updates(library, max(scale.columns, scale.active), scale.dim)
    before = resident()
    many = steering(scale.many_clients, scale.columns, scale.active, 1, updates, spread=True)
    draw = np.random.default_rng(3)
    for _ in range(10):  # clients come as they like; tables grow as they come
        many.take(draw.choice(scale.many_clients, scale.active, replace=False).tolist())
    after = resident()
    few = steering(scale.clients, scale.columns, scale.active, 1, updates, spread=True)
    taken = medians({"few": few, "many": many}, scale.repeats)
    k, d, n = scale.columns, scale.dim, scale.many_clients
    return taken | {
        "state bytes": many.state.nbytes,
        "resident bytes": None if before is None or after is None else after - before,
        "kd + Nk bytes": 4 * k * d + 8 * n * k,  # columns in float32, coordinates in float64
        "Nd bytes": 4 * n * d,  # what FedVARP would hold
    }


def resident() -> int | None:
    """Resident bytes of this process, where the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def make_gram(clients: int) -> np.ndarray:
    """Of updates with a common part, thirty shared directions, and noise."""
    draw = np.random.default_rng(1)
    mixed = draw.standard_normal((clients, 30)) @ draw.standard_normal((30, 400))
    updates = 2.0 + mixed + draw.standard_normal((clients, 400))
    updates *= draw.uniform(0.5, 2.0, (clients, 1))
    return updates @ updates.T


def seek(gram: np.ndarray, columns: int, swaps: int) -> np.ndarray:
    """The search as the rule runs it, from the Gram matrix on."""
    weights = np.full(len(gram), 1.0 / len(gram))
    return search(Snapshot.of(gram, weights), np.arange(columns), 0.5, swaps)


def measure_search(scale: Scale) -> dict[str, Any]:
    """(c) the search against solving anew for every swap; the latter on a sample, scaled up."""
    gram, n, k = make_gram(scale.search_clients), scale.search_clients, scale.search_columns
    found = seek(gram, k, scale.swaps)
    snapshot = Snapshot.of(gram, np.full(n, 1.0 / n))
    draw = np.random.default_rng(2)

    def solve_one_swap() -> float:
        core = np.arange(k)
        core[draw.integers(k)] = draw.integers(k, n)
        known = snapshot.projections[core]
        system = snapshot.cosines[np.ix_(core, core)] + 0.5 * np.eye(k)
        return snapshot.energy - float(
            np.sum(known * np.linalg.solve(system, known), axis=0) @ snapshot.weights
        )

    fast = medians({"search": lambda: seek(gram, k, scale.swaps)}, scale.repeats)["search"]
    one = medians({"swap": solve_one_swap}, scale.brute_sample)["swap"]
    return {
        "search": fast,
        "swaps made": len(np.setdiff1d(found, np.arange(k))),
        "brute swap": one,
        "brute": one * scale.swaps * k * (n - k),
    }


def measure_scaling(scale: Scale, library: str) -> dict[str, Any]:
    """(d) log-log slopes of time over each size, all else as in (a)."""
    n, k, m, d = scale.clients, scale.columns, scale.active, scale.dim
    rows = max(k, m, *scale.widths)
    updates = make_updates(library, rows, max(d, *scale.dims))

    def of(clients: int = n, columns: int = k, active: int = m, dim: int = d) -> Server:
        return steering(clients, columns, active, 1, updates[:, :dim], spread=clients > n)

    # At a quarter of d, so that 40 columns and 40 updates fit where ten do.
    quarter = d // 4
    steps = {
        "d": {size: of(dim=size) for size in scale.dims},
        "k": {size: of(columns=size, dim=quarter) for size in scale.widths},
        "m": {size: of(active=size, dim=quarter) for size in scale.widths},
        "N": {size: of(clients=size) for size in scale.populations},
    }
    searches: dict[str, dict[int, Callable[[], object]]] = {"N": {}, "k": {}}
    for size in scale.search_populations:
        gram = make_gram(size)
        searches["N"][size] = lambda gram=gram: seek(gram, scale.search_columns, scale.swaps)
    for size in scale.search_widths:
        gram = make_gram(scale.search_clients)
        searches["k"][size] = lambda gram=gram, size=size: seek(gram, size, scale.swaps)
    return {
        "step": {name: sweep(cases, scale.sweep_repeats) for name, cases in steps.items()},
        "search": {name: sweep(cases, scale.sweep_repeats) for name, cases in searches.items()},
    }


def sweep(cases: dict[int, Any], repeats: int) -> dict[str, Any]:
    """Median seconds at each size and the slope of their logarithms."""
    taken = medians({str(size): case for size, case in cases.items()}, repeats)
    slope = np.polyfit(np.log(list(cases)), np.log(list(taken.values())), 1)[0]
    return {"seconds": taken, "slope": float(slope)}


# -- one fresh process for each library and number of threads ------------------------------------


def work(part: str, library: str, threads: int, scale: Scale) -> dict[str, Any]:
    """Measure one part in this process."""
    if library == "torch":
        import torch

        torch.set_num_threads(threads)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "step": lambda: measure_step(scale, library),
        "population": lambda: measure_population(scale, library),
        "search": lambda: measure_search(scale),
        "scaling": lambda: measure_scaling(scale, library),
    }
    return parts[part]()


def spawn(part: str, library: str, threads: int, quick: bool) -> dict[str, Any]:
    """Measure one part in a process of its own: BLAS reads its threads when it is loaded."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    command = [sys.executable, __file__, "--worker", part, library, str(threads)]
    done = subprocess.run(
        command + ["--quick"] * quick,
        env=os.environ | dict.fromkeys(names, str(threads)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything, one part after the other."""
    scale = QUICK if quick else FULL
    libraries = ["numpy"] + ["torch"] * (find_spec("torch") is not None)
    rows = []
    for library in libraries:
        for threads in scale.threads:
            say(f"step and population, {library}, threads: {threads}")
            step = spawn("step", library, threads, quick)
            population = spawn("population", library, threads, quick)
            rows.append(
                {"library": library, "threads": threads, "step": step, "population": population}
            )
    say("search")
    found = spawn("search", "numpy", 1, quick)
    say("scaling")
    return {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
        "versions": {name: version(name) for name in ["fedsteer", *libraries]},
        "scale": vars(scale),
        "rows": rows,
        "search": found,
        "scaling": spawn("scaling", "numpy", 1, quick),
    }


def version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed(name)
    except PackageNotFoundError:
        return "source tree"


# -- showing -----------------------------------------------------------------------------------


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
    rows = [["", "3 products", "1 core", "all core", "goal", "FedAvg/sum", "d=100", "goal"]]
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
                f"{step['fedavg'] / step['bare sum']:.2f}",
                f"{1e3 * step['overhead']:.2f} ms",
                verdict(step["overhead"], GOAL_OVERHEAD, scale),
            ]
        )
    head = (
        f"(a) FedSteer's step over the products c@H, a@G, H@G.T; d={scale['dim']:,} "
        f"k={scale['columns']} m={scale['active']} N={scale['clients']}, float32\n"
        f"    goals: at most {GOAL_STEP}; without d less than {1e3 * GOAL_OVERHEAD:g} ms"
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--out", type=Path, help="write all numbers as JSON to this file")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.worker:
        part, library, threads = chosen.worker
        found = work(part, library, int(threads), QUICK if chosen.quick else FULL)
        print(json.dumps(found))
        return
    results = measure(chosen.quick, lambda line: print(f"... {line}", file=sys.stderr))
    print(show(results))
    if chosen.out:
        chosen.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
