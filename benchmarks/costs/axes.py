"""Time and memory along one size at a time, everything else fixed."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from costs.servers import Server, make_gram, make_updates, seek, steering
from costs.timing import in_fresh_process, medians, peak_memory

Measured = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """Sizes of everything measured."""

    columns: int = 10  # k
    active: int = 10  # m
    clients: int = 100  # N
    dim: int = 400_000  # d, of the axes k and m
    population_dim: int = 10_000  # d of the axis N, where all coordinates are filled in first
    cohort: int = 2_000  # clients at a time
    repeats: int = 21
    populations: tuple[int, ...] = (
        *(100, 316, 1_000, 3_160, 10_000, 31_600),
        *(100_000, 316_000, 1_000_000),
    )
    dims: tuple[int, ...] = (10_000, 31_600, 100_000, 316_000, 1_000_000, 3_160_000, 10_000_000)
    widths: tuple[int, ...] = (2, 4, 8, 16, 32, 64)  # k
    actives: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)  # m
    search_clients: int = 1_000
    search_columns: int = 20
    swaps: int = 5
    search_populations: tuple[int, ...] = (125, 250, 500, 1_000, 2_000, 4_000)
    search_widths: tuple[int, ...] = (5, 10, 20, 40, 80, 160)
    rounds: int = 60
    experiment: dict[str, Any] = field(default_factory=dict)


FULL = Plan()
QUICK = Plan(
    dim=500,
    population_dim=100,
    cohort=50,
    repeats=2,
    populations=(100, 200, 400),
    dims=(200, 400, 800),
    widths=(2, 4, 8),
    actives=(1, 2, 4),
    search_clients=40,
    search_columns=4,
    search_populations=(30, 60, 120),
    search_widths=(2, 4, 8),
    rounds=3,
    experiment={"data.name": "made", "data.options": {"points": 200, "side": 4}},
)


def step_over_d(plan: Plan) -> Measured:
    updates = make_updates("numpy", max(plan.columns, plan.active), max(plan.dims))
    servers = {
        size: steering(plan.clients, plan.columns, plan.active, 1, updates[:, :size])
        for size in plan.dims
    }
    return _steps(servers, plan) | _fixed(N=plan.clients, k=plan.columns, m=plan.active)


def step_over_k(plan: Plan) -> Measured:
    updates = make_updates("numpy", max(*plan.widths, plan.active), plan.dim)
    servers = {size: steering(plan.clients, size, plan.active, 1, updates) for size in plan.widths}
    return _steps(servers, plan) | _fixed(N=plan.clients, m=plan.active, d=plan.dim)


def step_over_m(plan: Plan) -> Measured:
    updates = make_updates("numpy", max(*plan.actives, plan.columns), plan.dim)
    servers = {
        size: steering(plan.clients, plan.columns, size, 1, updates) for size in plan.actives
    }
    return _steps(servers, plan) | _fixed(N=plan.clients, k=plan.columns, d=plan.dim)


def step_over_n(plan: Plan) -> Measured:
    """Every client has taken part once, so that all N k coordinates exist."""
    updates = make_updates("numpy", plan.cohort, plan.population_dim)
    servers = {}
    for size in plan.populations:
        server = steering(size, plan.columns, plan.active, 1, updates, spread=True)
        for first in range(0, size, plan.cohort):
            server.take(range(first, min(first + plan.cohort, size)))
        servers[size] = server
    fixed = _fixed(k=plan.columns, m=plan.active, d=plan.population_dim)
    return _steps(servers, plan) | fixed


def search_over_n(plan: Plan) -> Measured:
    grams = {size: make_gram(size) for size in plan.search_populations}
    cases = {
        size: (lambda gram=gram: seek(gram, plan.search_columns, plan.swaps))
        for size, gram in grams.items()
    }
    return _times(cases, plan) | _fixed(k=plan.search_columns, swaps=plan.swaps)


def search_over_k(plan: Plan) -> Measured:
    gram = make_gram(plan.search_clients)
    cases = {size: (lambda size=size: seek(gram, size, plan.swaps)) for size in plan.search_widths}
    return _times(cases, plan) | _fixed(N=plan.search_clients, swaps=plan.swaps)


def rounds_over_n(plan: Plan, script: str, quick: bool) -> Measured:
    """Each N in a process of its own, because the peak memory of a process cannot be reset."""
    found = [
        in_fresh_process(script, ["--population", str(size)] + ["--quick"] * quick, threads=1)
        for size in plan.populations
    ]
    columns = {name: [entry[name] for entry in found] for name in found[0]}
    return {"sizes": list(plan.populations)} | columns | _fixed(active=10, points=10)


def population(clients: int, plan: Plan) -> dict[str, float]:
    """A simulation with ten of `clients` active: data, local training, rule, records."""
    from fedsteer.simulate.cells import find_rule
    from fedsteer.simulate.experiment_files import load_experiment
    from fedsteer.simulate.loop import Simulation
    from fedsteer.simulate.world import build_world

    settings: dict[str, Any] = plan.experiment | {
        "partition.clients": clients,
        "partition.points": 10,
        "partition.replace": True,
        "participation.weak": 10 / clients,
        "participation.powerful": 10 / clients,
        "run.rounds": plan.rounds,
        "run.evaluate_every": plan.rounds,
    }
    start = time.perf_counter()
    experiment = load_experiment("digits", settings)
    entry = find_rule(experiment, "fedsteer:practical")
    simulation = Simulation(build_world(experiment, 0), entry.build(experiment, 0))
    built = time.perf_counter() - start
    spent, active = [], []
    rounds = simulation.rounds()
    while True:  # timed from outside, so that drawing participants counts
        start = time.perf_counter()
        result = next(rounds, None)
        if result is None:
            break
        spent.append(time.perf_counter() - start - result.timing["evaluate"])
        active.append(result.row["active"])
    return {
        "seconds": float(np.median(spent)),
        "active": float(np.mean(active)),
        "set-up seconds": built,
        "peak bytes": float(peak_memory()),
    }


def _steps(servers: dict[int, Server], plan: Plan) -> Measured:
    """Time of a step, memory of the state after it, and further memory during it."""
    found = _times(servers, plan)
    found["state bytes"] = [server.state.nbytes for server in servers.values()]
    found["step bytes"] = [_extra_memory(server) for server in servers.values()]
    return found


def _times(cases: Any, plan: Plan) -> Measured:
    named: dict[str, Callable[[], object]] = {str(size): case for size, case in cases.items()}
    taken = medians(named, plan.repeats)
    return {"sizes": list(cases), "seconds": list(taken.values())}


def _extra_memory(work: Callable[[], object]) -> int:
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _fixed(**sizes: int) -> Measured:
    return {"fixed": sizes}


AXES: dict[str, Callable[[Plan], Measured]] = {
    "step over N": step_over_n,
    "step over d": step_over_d,
    "step over k": step_over_k,
    "step over m": step_over_m,
    "search over N": search_over_n,
    "search over k": search_over_k,
}
ROUNDS = "round over N"
NAMES: Sequence[str] = (*AXES, ROUNDS)
