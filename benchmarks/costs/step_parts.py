"""The four parts of the server-step benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from costs.fitting import fit
from costs.servers import (
    Server,
    Stacking,
    make_gram,
    make_updates,
    one_by_one,
    seek,
    steering,
)
from costs.timing import medians, resident
from fedsteer import make_rule
from fedsteer.rules.fedsteer.search import Snapshot


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


def three_products(server: Server, library: str) -> dict[str, Callable[[], object]]:
    """What no implementation can avoid, on the server's own arrays, and FedAvg's sum."""
    basis = server.state.memory.own.columns.rows  # type: ignore[attr-defined]
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
    apart = steering(*sizes, 1, one_by_one(updates))
    functions = three_products(one, library) | {
        "fedsteer, 1 core": one,
        "fedsteer, a list": apart,
        "fedsteer, a list put into a matrix": Stacking(apart),
        "fedsteer, all core": every,
        "fedavg": plain,
    }
    small = steering(*sizes, scale.active, make_updates(library, len(updates), 100))
    overhead = medians({"overhead": small}, 20 * scale.repeats)
    return medians(functions, scale.repeats) | overhead


def measure_population(scale: Scale, library: str) -> dict[str, Any]:
    """(b) the same step with a million clients, and the memory it holds."""
    updates = make_updates(library, max(scale.columns, scale.active), scale.dim)
    before = resident()
    many = steering(scale.many_clients, scale.columns, scale.active, 1, updates, spread=True)
    draw = np.random.default_rng(3)
    for _ in range(10):  # tables grow as clients arrive
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

    # A quarter of d, so that 40 columns and 40 updates need no more memory than ten.
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
    return {"seconds": taken, "slope": fit(list(cases), list(taken.values())).slope}
