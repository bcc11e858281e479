"""The kernels in NumPy and torch against plain float64 formulas, for many shapes and blocks."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer.steering.checks import untracked
from fedsteer.steering.kernels import Kernels, Sweep, kernels_for, kernels_named, library_of
from fedsteer.steering.kernels import numpy as in_numpy
from fedsteer.steering.kernels import torch as in_torch

KINDS = [
    "numpy-float16",
    "numpy-float32",
    "numpy-float64",
    "torch-float16",
    "torch-bfloat16",
    "torch-float32",
    "torch-float64",
]
# m, k, d; the first block sizes below do not divide these dimensions
SHAPES = [(0, 0, 5), (0, 3, 7), (1, 0, 1), (3, 2, 8), (5, 4, 1000), (2, 7, 5003)]
RELATIVE = {"float64": 1e-12, "float32": 1e-5}


def convert(values: Any, kind: str) -> Any:
    library, _, dtype = kind.partition("-")
    if library == "torch":
        return torch.tensor(np.asarray(values), dtype=getattr(torch, dtype))
    return np.array(values, dtype)


def name_of(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def host(array: Any) -> Any:
    return array.double().numpy() if isinstance(array, torch.Tensor) else np.float64(array)


def work_type(kind: str, precise: bool = False) -> str:
    return "float64" if precise or kind.endswith("float64") else "float32"


def close(actual: Any, expected: Any, tolerance: float) -> None:
    scale = max(float(np.abs(expected).max(initial=0.0)), 1.0)
    np.testing.assert_allclose(host(actual), expected, rtol=0, atol=tolerance * scale)


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many blocks":
        monkeypatch.setattr(in_numpy, "_blocks", in_pieces)
        monkeypatch.setattr(in_torch, "CPU_BLOCK", 97)
        monkeypatch.setattr(in_torch, "PIECE", 16)


def in_pieces(dim: int, outputs: int = 1) -> Any:
    return (slice(start, min(start + 97, dim)) for start in range(0, dim, 97))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("extras", ["plain", "rows", "base", "gram", "all"])
def test_one_pass(kind: str, shape: Any, extras: str) -> None:
    for precise in (False, True):
        check_one_pass(kind, shape, precise, extras)


def check_one_pass(kind: str, shape: Any, precise: bool, extras: str) -> None:
    count, width, dim = shape
    draw = np.random.default_rng(0)
    updates = convert(draw.standard_normal((count, dim)), kind)
    basis = convert(draw.standard_normal((width + 2, dim)), kind) if width else None
    rows = draw.choice(width + 2, width, replace=False) if extras in ("rows", "all") else None
    used = 0 if basis is None else width if rows is not None else width + 2
    weights, coefficients = draw.standard_normal(count), draw.standard_normal(used)
    base = None
    if extras in ("base", "all"):
        base = convert(draw.standard_normal(dim), kind.partition("-")[0] + "-float64")
    gram_of = np.zeros(0, np.int64)
    if extras in ("gram", "all"):
        gram_of = draw.permutation(count)[: max(count - 1, 0)]
    given = [host(updates).copy(), None if basis is None else host(basis).copy()]

    sweep = Sweep(
        updates=updates,
        weights=weights,
        basis=basis,
        coefficients=coefficients,
        rows=rows if basis is not None else None,
        base=base,
        base_scale=-0.7,
        gram_of=gram_of,
        precise=precise,
    )
    result = kernels_for(updates).one_pass(sweep)

    exact = host(updates)
    known = np.zeros((0, dim)) if basis is None else host(basis)
    known = known[rows] if rows is not None and basis is not None else known
    chosen = exact[gram_of]
    delta = weights @ exact + coefficients @ known + (0 if base is None else -0.7 * host(base))
    tolerance = RELATIVE[work_type(kind, precise)]
    assert result.delta.dtype == getattr(torch if kind.startswith("torch") else np, work_type(kind))
    close(result.delta, delta, max(tolerance, RELATIVE[work_type(kind)]))
    close(result.products, known @ exact.T, tolerance)
    close(result.squared_norms, np.sum(exact**2, axis=1), tolerance)
    close(result.gram, chosen @ chosen.T, tolerance)
    assert result.delta_squared_norm == pytest.approx(float(delta @ delta), rel=10 * tolerance)
    for name in ("products", "squared_norms", "gram"):
        assert getattr(result, name).dtype == np.float64
    np.testing.assert_array_equal(host(updates), given[0])
    if basis is not None:
        np.testing.assert_array_equal(host(basis), given[1])


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_gram_of_everybody_in_order(kind: str) -> None:
    """The kernels have a separate path for this."""
    updates = convert(np.random.default_rng(1).standard_normal((4, 300)), kind)
    exact, tolerance = host(updates), RELATIVE[work_type(kind)]
    for order in (np.arange(4), np.array([2, 0, 3, 1]), np.array([3])):
        sweep = Sweep(updates=updates, weights=np.ones(4), gram_of=order)
        found = kernels_for(updates).one_pass(sweep)
        close(found.gram, exact[order] @ exact[order].T, tolerance)
        close(found.squared_norms, np.sum(exact**2, axis=1), tolerance)
        close(found.delta, exact.sum(axis=0), tolerance)


@pytest.mark.parametrize("kind", ["numpy-float32", "numpy-float64", "torch-float32"])
@pytest.mark.parametrize("size", [1, 64, 1000, 1 << 20])
def test_block_size_changes_nothing_but_rounding(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(2)
    updates, basis = (convert(draw.standard_normal((3, 2500)), kind) for _ in range(2))
    kernels = kernels_for(updates)

    sweep = Sweep(
        updates=updates,
        weights=np.ones(3),
        basis=basis,
        coefficients=np.ones(3),
        gram_of=np.array([0, 2]),
    )

    def everything() -> list[Any]:
        found = kernels.one_pass(sweep)
        target = convert(np.zeros(2500), kind.partition("-")[0] + "-float64")
        kernels.add_rows(target, np.arange(3.0), updates)
        return [
            *(found.delta, found.products, found.squared_norms, found.gram),
            *(kernels.products(updates, basis), kernels.products(updates, updates), target),
        ]

    usual = everything()

    def sliced(given: Any, *_: Any, **__: Any) -> list[slice]:
        dim = given if isinstance(given, int) else given.shape[-1]
        return [slice(start, min(start + size, dim)) for start in range(0, dim, size)]

    monkeypatch.setattr(in_numpy, "_blocks", sliced)
    monkeypatch.setattr(in_torch, "_blocks", sliced)
    for one, other in zip(usual, everything(), strict=True):
        close(one, host(other), RELATIVE[work_type(kind)])


def test_numpy_blocks_cover_everything_once_and_stay_small() -> None:
    for dim in (0, 1, 2047, 2048, 65_536, 65_537, 300_001):
        for outputs in (0, 1, 40, 400, 10**9):
            covered = np.zeros(dim, int)
            for block in in_numpy._blocks(dim, outputs):
                covered[block] += 1
                assert 0 < block.stop - block.start <= in_numpy.BLOCK
            assert (covered == 1).all()


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("picked", [None, [3, 0], []])
def test_add_rows(kind: str, picked: list[int] | None) -> None:
    draw = np.random.default_rng(4)
    rows_of = convert(draw.standard_normal((4, 1001)), kind)
    start = draw.standard_normal(1001)
    target = convert(start, kind.partition("-")[0] + "-float64")
    rows = None if picked is None else np.array(picked, np.int64)
    chosen = host(rows_of) if rows is None else host(rows_of)[rows]
    weights = draw.standard_normal(len(chosen))
    kernels_for(rows_of).add_rows(target, weights, rows_of, rows)
    close(target, start + weights @ chosen, 1e-12)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 3), (2, 3), (2, 0)])
def test_combine_products_and_gram(kind: str, shape: Any) -> None:
    draw = np.random.default_rng(5)
    left = convert(draw.standard_normal((shape[0], 501)), kind)
    right = convert(draw.standard_normal((shape[1], 501)), kind)
    kernels = kernels_for(right)
    matrix = draw.standard_normal(shape)
    close(kernels.combine(matrix, right), matrix @ host(right), RELATIVE[work_type(kind)])
    assert name_of(kernels.combine(matrix, right)) == work_type(kind)
    # Sums of float64 products of what is stored: exact whatever the stored type.
    close(kernels.products(left, right), host(left) @ host(right).T, 1e-12)
    close(kernels.products(right, right), host(right) @ host(right).T, 1e-12)
    part = slice(100, 250)
    close(
        kernels.products(right[:, part], right[:, part]),
        host(right)[:, part] @ host(right)[:, part].T,
        1e-12,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dim", "width"), [(1000, 50), (1003, 50), (49, 50), (50, 50), (1, 7), (20, 1)]
)
def test_sketch_is_the_sum_of_signed_strides(kind: str, dim: int, width: int) -> None:
    updates = convert(np.random.default_rng(6).standard_normal((3, dim)), kind)
    found = kernels_for(updates).sketch(updates, width, seed=9)
    assert found.shape == (3, width) and found.dtype == np.float64
    ours = in_numpy.sketch(np.array(host(updates)), width, seed=9)
    close(found, ours, RELATIVE[work_type(kind)])
    # Every coordinate enters exactly one bucket, with a sign.
    unit = np.eye(dim)
    buckets = in_numpy.sketch(unit, width, seed=9)
    assert (np.abs(buckets).sum(axis=1) == 1).all()
    assert (np.argmax(np.abs(buckets), axis=1) == np.arange(dim) % width).all()


@pytest.mark.parametrize("kind", KINDS)
def test_sketch_of_nobody(kind: str) -> None:
    updates = convert(np.zeros((0, 10)), kind)
    assert kernels_for(updates).sketch(updates, 4, seed=0).shape == (0, 4)


def test_sketches_estimate_inner_products_without_bias() -> None:
    """Over many seeds the mean is within a few standard errors; one costs about |a||b|/sqrt(r)."""
    draw = np.random.default_rng(7)
    updates = draw.standard_normal((2, 2000))
    updates[1] += 0.5 * updates[0]
    width, seeds = 100, 400
    sketches = [in_numpy.sketch(updates, width, seed) for seed in range(seeds)]
    found = np.array([s[0] @ s[1] for s in sketches])
    exact = float(updates[0] @ updates[1])
    lengths = float(np.linalg.norm(updates[0]) * np.linalg.norm(updates[1]))
    assert abs(found.mean() - exact) < 4 * found.std() / np.sqrt(seeds)
    assert 0.3 * lengths / np.sqrt(width) < found.std() < 2 * lengths / np.sqrt(width)
    norms = np.array([s[0] @ s[0] for s in sketches])
    assert abs(norms.mean() - updates[0] @ updates[0]) < 4 * norms.std() / np.sqrt(seeds)


@pytest.mark.parametrize("kind", KINDS)
def test_host_and_back_is_exact(kind: str) -> None:
    array = convert(np.random.default_rng(8).standard_normal((3, 5)), kind)
    kernels = kernels_for(array)
    packed, dtype = kernels.to_host(array)
    assert isinstance(packed, np.ndarray) and dtype == kind.partition("-")[2]
    back = kernels.from_host(packed, dtype, array)
    assert type(back) is type(array) and back.dtype == array.dtype
    np.testing.assert_array_equal(host(back), host(array))
    kept = host(back).copy()
    packed[:] = 0  # may be the array itself
    np.testing.assert_array_equal(host(back), kept)


@pytest.mark.parametrize("kind", KINDS)
def test_small_operations(kind: str) -> None:
    array = convert(np.random.default_rng(9).standard_normal((3, 5)), kind)
    kernels = kernels_for(array)
    copied = kernels.clone(array)
    copied[:] = 0
    assert host(array).any()
    stacked = kernels.stack([array[2], array[0]])
    np.testing.assert_array_equal(host(stacked), host(array)[[2, 0]])
    assert kernels.check(array) is None
    assert name_of(array) == kind.partition("-")[2]
    zeros = kernels.allocate((2, 0, 3), array, "float32")
    assert tuple(zeros.shape) == (2, 0, 3) and name_of(zeros) == "float32"
    assert kernels.allocate((4,), array).dtype == array.dtype


def test_gradients_are_taken_away() -> None:
    tracked = torch.zeros(2, 3, requires_grad=True)
    assert not untracked(tracked).requires_grad
    assert not in_torch.clone(tracked).requires_grad


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((1, 2), np.int64),
        np.zeros((1, 2), complex),
        np.zeros((1, 2), np.longdouble),
        np.array([["a", "b"]]),
        np.array([[None, None]]),
        torch.zeros(1, 2, dtype=torch.int32),
        torch.zeros(1, 2, dtype=torch.complex64),
        torch.zeros(1, 2, dtype=torch.float8_e4m3fn),
        "text",
        None,
    ],
    ids=lambda bad: str(getattr(bad, "dtype", bad)),
)
def test_unusable_types_are_named(bad: Any) -> None:
    problem = kernels_for(bad).check(bad)
    assert problem is not None and "updates must be" in problem


def test_both_libraries_offer_every_kernel() -> None:
    names = [name for name, _ in inspect.getmembers(Kernels, inspect.isfunction) if name[0] != "_"]
    assert len(names) >= 11
    for name in names:
        wanted = list(inspect.signature(getattr(Kernels, name)).parameters)[1:]
        for module in (in_numpy, in_torch):
            assert list(inspect.signature(getattr(module, name)).parameters) == wanted, name


def test_library_of() -> None:
    assert library_of(np.zeros(1)) == library_of([1.0]) == library_of(None) == "numpy"
    assert library_of(torch.zeros(1)) == library_of(torch.nn.Parameter(torch.zeros(1))) == "torch"
    assert kernels_named("torch") is in_torch and kernels_named("numpy") is in_numpy
