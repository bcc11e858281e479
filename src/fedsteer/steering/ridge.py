"""Small symmetric systems: the ridge coordinates of a round, and maps between bases.

Everything here is k x k. Nothing ever fails: where Cholesky would, or would return numbers that
mean nothing, a symmetric eigendecomposition with a relative cut-off takes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from fedsteer.steering.kernels import Floats

CUT_OFF = 1e-12
"""Eigenvalues below this share of the largest are taken as zero."""
NEARLY_ALIKE = 1e-4
"""For maps between bases, and there of columns of length one: columns this much alike could be
combined with huge coordinates that cancel, until one of the columns is renewed."""


def ridge_solve(gram: Floats, ridge: float, right: Floats, solver: str = "cholesky") -> Floats:
    """(K + ridge I)^-1 right, for all right-hand sides at once; pseudo-inverse where singular."""
    return ridge_solver(gram, ridge, solver)(right)


def ridge_solver(
    gram: Floats, ridge: float, solver: str = "cholesky", scale: Floats | None = None
) -> Callable[[Floats], Floats]:
    """`ridge_solve` as a function of the right-hand sides: what they share is done once.

    Each row of them is multiplied by its `scale` first.
    """
    factors = np.ones(len(gram)) if scale is None else scale
    if not gram.size:
        return np.zeros_like
    system = gram.copy()
    system.flat[:: len(gram) + 1] += ridge
    if solver == "gradient":
        return partial(_descend, system, factors)
    even = _evening(system)
    try:
        lower = np.linalg.cholesky((system * even[:, None]) * even)
    except np.linalg.LinAlgError:
        return (pseudo_inverse(system) * factors).dot
    pivots = [pivot * pivot for pivot in lower.diagonal().tolist()]
    if min(pivots) <= CUT_OFF * max(pivots) * len(gram):
        return (pseudo_inverse(system) * factors).dot
    inverse = np.linalg.inv(lower)
    return partial(_substitute, (inverse * even).T, inverse * (even * factors))


def pseudo_inverse(symmetric: Floats, least: float = 0.0) -> Floats:
    """Of a positive semi-definite matrix, with a relative cut-off and one by value."""
    values, vectors = np.linalg.eigh(symmetric)
    largest = values[-1] if len(values) else 0.0
    keep = values > max(max(largest, 0.0) * CUT_OFF, least)
    inverse: Floats = (vectors[:, keep] / values[keep]) @ vectors[:, keep].T
    return inverse


def generalised_inverse(symmetric: Floats) -> Floats:
    """G with S G S = S, but for NEARLY_ALIKE, whose cut-off does not depend on lengths.

    Where S is a Gram matrix of columns, what is combined from them is the same as with the
    pseudo-inverse, but for what columns that are nearly alike differ by.
    """
    even = _evening(symmetric)
    inverse = pseudo_inverse((symmetric * even[:, None]) * even, NEARLY_ALIKE)
    return (inverse * even[:, None]) * even


def _evening(symmetric: Floats) -> Floats:
    """Factors for rows and columns that make a diagonal of ones; 0 where it is not positive."""
    diagonal = symmetric.diagonal().tolist()
    return np.array([1.0 / math.sqrt(value) if value > 0 else 0.0 for value in diagonal])


def condition(gram: Floats) -> float:
    """Largest over smallest eigenvalue; inf for a singular matrix, nan for none."""
    if not gram.size:
        return float("nan")
    values = np.linalg.eigvalsh(gram)
    return float(values[-1] / values[0]) if values[0] > 0 else float("inf")


def _substitute(upper: Floats, lower: Floats, right: Floats) -> Floats:
    """By the inverses of both factors: no worse than two solutions. Their product would be."""
    solved: Floats = upper.dot(lower.dot(right))
    return solved


def _descend(system: Floats, factors: Floats, unscaled: Floats, tolerance: float = 1e-12) -> Floats:
    """Gradient descent on the same strictly convex problem, for servers without a solver.

    Converges like 1 - ridge / (k + ridge) per step, so it is meant for ridges that are not tiny;
    it stops at the tolerance or after enough steps for a condition number of 10^5.
    """
    right = factors[:, None] * unscaled
    rate = 1.0 / max(float(np.abs(system).sum(axis=1).max()), 1e-300)
    goal = tolerance * max(float(np.linalg.norm(right)), 1e-300)
    solution = np.zeros_like(right)
    for _ in range(3_000_000):
        gradient = system @ solution - right
        if not np.linalg.norm(gradient) > goal:  # also where a bad update made it nan
            break
        solution -= rate * gradient
    return solution
