"""Small symmetric systems: all paths agree, and nothing ever fails."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsteer.rules.fedsteer.ridge import (
    condition,
    generalised_inverse,
    pseudo_inverse,
    ridge_solve,
)


def solve(gram: Any, ridge: float, right: Any, method: str = "cholesky") -> Any:
    return ridge_solve(gram, ridge, method, np.ones(len(gram)), right)


def unit_gram(size: int, seed: int = 0, rank: int | None = None) -> Any:
    """The Gram matrix of unit columns, of lower rank if asked."""
    draw = np.random.default_rng(seed)
    columns = draw.standard_normal((30, rank or size)) @ draw.standard_normal((rank or size, size))
    columns /= np.linalg.norm(columns, axis=0)
    return columns.T @ columns


@pytest.mark.parametrize("size", [1, 2, 10, 40])
@pytest.mark.parametrize("ridge", [0.5, 0.01])
def test_all_solvers_agree(size: int, ridge: float) -> None:
    gram = unit_gram(size)
    right = np.random.default_rng(1).standard_normal((size, 7))
    exact = np.linalg.inv(gram + ridge * np.eye(size)) @ right
    np.testing.assert_allclose(solve(gram, ridge, right), exact, rtol=0, atol=1e-10)
    descended = solve(gram, ridge, right, "gradient")
    np.testing.assert_allclose(descended, exact, rtol=0, atol=1e-8)
    eigen = pseudo_inverse(gram + ridge * np.eye(size)) @ right
    np.testing.assert_allclose(eigen, exact, rtol=0, atol=1e-10)


def exactly(gram: Any, ridge: float, right: Any) -> Any:
    """(gram + ridge I)^-1 right by elimination in fractions."""
    rows = [[Fraction(float(x)) for x in row] for row in np.column_stack([gram, right])]
    for i, row in enumerate(rows):
        row[i] += Fraction(ridge)
    for i, pivot in enumerate(rows):
        pivot[:] = [x / pivot[i] for x in pivot]
        for row in rows:
            if row is not pivot:
                row[:] = [x - row[i] * y for x, y in zip(row, pivot, strict=True)]
    return np.array([[float(x) for x in row[len(rows) :]] for row in rows])


@pytest.mark.parametrize("ridge", [1e-2, 1e-6])
def test_estimates_from_nearly_collinear_columns_are_exact(ridge: float) -> None:
    """Coordinates are large and cancel; what they stand for has to come out all the same."""
    draw = np.random.default_rng(5)
    columns = draw.standard_normal((30, 1)) + 1e-5 * draw.standard_normal((30, 6))
    columns /= np.linalg.norm(columns, axis=0)
    gram, right = columns.T @ columns, columns.T @ draw.standard_normal((30, 4))
    best = columns @ exactly(gram, ridge, right)
    error = columns @ solve(gram, ridge, right) - best
    assert np.linalg.norm(error) < 1e-12 * np.linalg.norm(best)


def test_ridge_zero_on_independent_columns() -> None:
    gram = unit_gram(5)
    right = np.random.default_rng(2).standard_normal((5, 3))
    for solver in ("cholesky", "gradient"):
        found = solve(gram, 0.0, right, solver)
        np.testing.assert_allclose(gram @ found, right, rtol=0, atol=1e-8)


@pytest.mark.parametrize("solver", ["cholesky", "gradient"])
@pytest.mark.parametrize("ridge", [0.0, 1e-14])
def test_singular_systems_get_the_least_squares_solution(ridge: float, solver: str) -> None:
    """Rank 2 of 6: the reconstruction is right although the coordinates are not unique."""
    draw = np.random.default_rng(3)
    columns = draw.standard_normal((20, 2)) @ draw.standard_normal((2, 6))
    columns /= np.linalg.norm(columns, axis=0)
    target = draw.standard_normal((20, 4))
    found = solve(columns.T @ columns, ridge, columns.T @ target, solver)
    best = columns @ np.linalg.lstsq(columns, target, rcond=None)[0]
    np.testing.assert_allclose(columns @ found, best, rtol=0, atol=1e-6)
    assert np.abs(found).max() < 100


@pytest.mark.parametrize("solver", ["cholesky", "gradient"])
def test_columns_without_anything_get_no_coordinate(solver: str) -> None:
    gram = unit_gram(4)
    gram[1] = gram[:, 1] = 0.0
    right = np.ones((4, 2))
    right[1] = 0.0
    for ridge in (0.0, 0.5):
        found = solve(gram, ridge, right, solver)
        assert np.abs(found[1]).max() < 1e-12 and found[[0, 2, 3]].any(axis=1).all()
    assert not solve(np.zeros((3, 3)), 0.0, np.zeros((3, 2)), solver).any()


def test_empty_systems() -> None:
    assert solve(np.zeros((0, 0)), 0.5, np.zeros((0, 3))).shape == (0, 3)
    assert solve(np.eye(3), 0.5, np.zeros((3, 0))).shape == (3, 0)
    assert pseudo_inverse(np.zeros((0, 0))).shape == (0, 0)


@pytest.mark.parametrize("solver", ["cholesky", "gradient"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_client_spoils_no_other_and_takes_no_time(bad: float, solver: str) -> None:
    """One right-hand side per client: a NaN must neither raise nor keep the descent running."""
    right = np.ones((4, 3))
    right[2, 1] = bad
    with np.errstate(invalid="ignore"):
        found = solve(unit_gram(4), 0.5, right, solver)
    assert np.isfinite(found[:, [0, 2]]).all()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([0.0, 1e-12, 1e-6, 0.5]))
def test_nothing_ever_fails(seed: int, size: int, ridge: float) -> None:
    """Symmetric matrices of any sign, scale and rank, as rounding can make them."""
    draw = np.random.default_rng(seed)
    factor = draw.standard_normal((size, size)) * 10.0 ** draw.integers(-8, 4)
    symmetric = factor + factor.T if seed % 2 else factor[:, :1] @ factor[:, :1].T
    right = draw.standard_normal((size, 2))
    assert np.isfinite(solve(symmetric, ridge, right)).all()
    assert np.isfinite(pseudo_inverse(symmetric)).all()
    assert condition(symmetric) >= 1.0


def test_an_indefinite_gram_matrix_is_cut_to_its_positive_part() -> None:
    """What a float32 Gram matrix of near-collinear columns looks like: one eigenvalue below 0."""
    values, vectors = np.linalg.eigh(unit_gram(5))
    values[0] = -1e-9
    gram = vectors * values @ vectors.T
    right = vectors[:, [4]]
    np.testing.assert_allclose(solve(gram, 0.0, right), right / values[4], atol=1e-6)


@pytest.mark.parametrize(
    ("count", "cosine"), [(100, 0.998), (50, 0.999), (10, 0.9995), (2, 0.9998)]
)
def test_how_much_columns_are_alike_does_not_depend_on_their_number(
    count: int, cosine: float
) -> None:
    lengths = np.geomspace(1e-3, 1e3, count)
    even = np.full((count, count), cosine) + (1 - cosine) * np.eye(count)
    gram = even * np.outer(lengths, lengths)
    inverse = generalised_inverse(gram)
    np.testing.assert_allclose(
        inverse * np.outer(lengths, lengths) @ even, np.eye(count), atol=1e-8
    )
    alike = np.ones((count, count))
    np.testing.assert_allclose(alike @ generalised_inverse(alike) @ alike, alike)


def test_pseudo_inverse_equals_numpy() -> None:
    gram = unit_gram(6, rank=3)
    np.testing.assert_allclose(
        pseudo_inverse(gram), np.linalg.pinv(gram, rcond=1e-10, hermitian=True), atol=1e-8
    )


def test_condition() -> None:
    assert condition(np.diag([4.0, 1.0])) == 4.0
    assert condition(np.zeros((2, 2))) == np.inf
    assert np.isnan(condition(np.zeros((0, 0))))
