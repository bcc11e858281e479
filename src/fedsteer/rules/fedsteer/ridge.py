"""Small symmetric systems: the ridge coordinates of a round, and maps between bases.

Everything here is k x k and nothing fails: if Cholesky would fail, or would return numbers without
meaning, a symmetric eigendecomposition with a relative cut-off takes over.
"""

import numpy as np

from fedsteer.steering.kernels import Floats

CUT_OFF = 1e-12
"""Eigenvalues below this share of the largest count as zero."""
NEARLY_ALIKE = 1e-4
"""The cut-off for maps between bases of unit columns. Columns this similar could be combined with
huge coordinates that cancel, until one of the columns is renewed."""


def ridge_solve(gram: Floats, ridge: float, method: str, scale: Floats, right: Floats) -> Floats:
    """(K + ridge I)^-1 (scale * right), where K is `gram`; a singular K has the pseudo-inverse.

    `scale` has a factor for each row.
    """
    if not gram.size:
        return np.zeros_like(right)
    system = gram + ridge * np.eye(len(gram))
    if method == "gradient":
        return _descend(system, scale[:, None] * right)
    lower, unit = _cholesky(system)
    if lower is None:
        return pseudo_inverse(system) * scale @ right
    # Both inverse factors in turn lose no more than two triangular solves; their product would.
    half = np.linalg.inv(lower)
    return (half * unit).T @ (half * (unit * scale) @ right)


def pseudo_inverse(symmetric: Floats, least: float = 0.0) -> Floats:
    """Of a positive semi-definite matrix; eigenvalues up to `least` count as zero, too."""
    values, vectors = np.linalg.eigh(symmetric)
    largest = values[-1] if len(values) else 0.0
    keep = values > max(max(largest, 0.0) * CUT_OFF, least)
    return (vectors[:, keep] / values[keep]) @ vectors[:, keep].T


def generalised_inverse(symmetric: Floats) -> Floats:
    """G with S G S = S up to NEARLY_ALIKE, a cut-off that does not depend on lengths.

    For a Gram matrix S, combinations of its columns come out as with the pseudo-inverse, except
    along the difference of columns that are nearly alike.
    """
    unit = _unit_diagonal(symmetric)
    inverse = pseudo_inverse((symmetric * unit[:, None]) * unit, NEARLY_ALIKE)
    return (inverse * unit[:, None]) * unit


def condition(gram: Floats) -> float:
    """Largest over smallest eigenvalue: inf for a singular matrix, nan for an empty one."""
    if not gram.size:
        return float("nan")
    values = np.linalg.eigvalsh(gram)
    return float(values[-1] / values[0]) if values[0] > 0 else float("inf")


def _cholesky(system: Floats) -> tuple[Floats | None, Floats]:
    """The factor of the system scaled to a unit diagonal, and that scale; None if unreliable."""
    unit = _unit_diagonal(system)
    try:
        lower = np.linalg.cholesky((system * unit[:, None]) * unit).astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        return None, unit
    pivots = lower.diagonal() ** 2
    reliable = pivots.min() > CUT_OFF * pivots.max() * len(system)
    return (lower if reliable else None), unit


def _unit_diagonal(symmetric: Floats) -> Floats:
    """Factors for rows and columns that make the diagonal 1; 0 where it is not positive."""
    diagonal = symmetric.diagonal()
    positive = diagonal > 0
    return positive / np.sqrt(diagonal, out=np.ones(len(diagonal)), where=positive)


def _descend(system: Floats, right: Floats, tolerance: float = 1e-12) -> Floats:
    """Gradient descent on the same strictly convex problem, for servers without a solver.

    Converges like 1 - ridge / (k + ridge) per step, so use it with ridges that are not tiny. It
    stops at the tolerance, or after enough steps for a condition number of 10^5.
    """
    rate = 1.0 / max(float(np.abs(system).sum(axis=1).max()), 1e-300)
    goal = tolerance * max(float(np.linalg.norm(right)), 1e-300)
    solution = np.zeros_like(right)
    for _ in range(3_000_000):
        gradient = system @ solution - right
        if not np.linalg.norm(gradient) > goal:  # `not`: also stops if a bad update made it nan
            break
        solution -= rate * gradient
    return solution
