"""Core set search (Algorithm 2) by brute force.

    J(X) = sum_i w_i ( |g_i - Q s_i|^2 + lambda |s_i|^2 ),   s_i = (Q^T Q + lambda I)^-1 Q^T g_i

with the unit columns q_j = g_j / |g_j|, j in X, and s_i = Q^+ g_i at lambda = 0. Clients are the
rows of G. A zero row may be in the set it starts from (its column is 0) but is never swapped in.
"""

from collections.abc import Sequence

import numpy as np


def objective(G: np.ndarray, weights: Sequence[float], core: Sequence[int], ridge: float) -> float:
    """J(X) with one explicit solve per client."""
    G = np.asarray(G, dtype=np.float64)
    basis = np.zeros((G.shape[1], len(core)))
    for place, client in enumerate(core):
        length = np.linalg.norm(G[client])
        if length > 0:
            basis[:, place] = G[client] / length
    value = 0.0
    for client in range(len(G)):
        if ridge == 0:
            solution = np.linalg.pinv(basis, rcond=1e-10) @ G[client]
        else:
            gram = basis.T @ basis + ridge * np.eye(len(core))
            solution = np.linalg.inv(gram) @ (basis.T @ G[client])
        error = G[client] - basis @ solution
        value += float(weights[client]) * float(
            np.dot(error, error) + ridge * np.dot(solution, solution)
        )
    return value


def brute_force_swaps(
    G: np.ndarray,
    weights: Sequence[float],
    core: Sequence[int],
    ridge: float,
    candidates: Sequence[int] | None = None,
) -> dict[tuple[int, int], float]:
    """J after every swap (out, in); `candidates` limits which may come in, all by default."""
    G = np.asarray(G, dtype=np.float64)
    values = {}
    for place, leaving in enumerate(core):
        for entering in range(len(G)) if candidates is None else candidates:
            if entering in core or not np.any(G[entering] != 0):
                continue
            swapped = list(core)
            swapped[place] = entering
            values[leaving, entering] = objective(G, weights, swapped, ridge)
    return values


def naive_search(
    G: np.ndarray,
    weights: Sequence[float],
    start: Sequence[int],
    ridge: float,
    max_swaps: int,
    candidates: Sequence[int] | None = None,
) -> list[int]:
    """The best swap while it is strictly better, at most `max_swaps` times; ties go to the first
    in the order of the columns, then of the candidates."""
    core = list(start)
    value = objective(G, weights, core, ridge)
    for _ in range(max_swaps):
        swaps = brute_force_swaps(G, weights, core, ridge, candidates)
        best = min(swaps, key=lambda swap: swaps[swap], default=None)
        if best is None or not swaps[best] < value:
            break
        core[core.index(best[0])] = best[1]
        value = swaps[best]
    return core
