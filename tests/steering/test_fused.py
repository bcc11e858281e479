"""The Triton pass: what is planned for it, and on a GPU each way to read against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, RoundRefused, make_rule
from fedsteer.steering.kernels import fused_plan
from fedsteer.steering.kernels import numpy as in_numpy
from fedsteer.steering.kernels import torch as in_torch
from fedsteer.steering.kernels.fused_plan import cut_for, plan_for
from fedsteer.steering.kernels.vectors import Vectors
from tests.steering.test_kernels import close, host

on_a_gpu = pytest.mark.skipif(
    find_spec("triton") is None or not torch.cuda.is_available(), reason="no GPU, or no Triton"
)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short updates too."""
    monkeypatch.setattr(fused_plan, "SMALLEST", 1)
    fused_plan._plan.cache_clear()
    yield
    fused_plan._plan.cache_clear()


def test_what_a_thread_holds_fits() -> None:
    """No more registers than there are, and programs for every scheduler alike."""
    fitting = 0
    for count in range(1, 40):
        for width in range(0, 40, 3):
            for gram in (False, True):
                for group in (1, 2, 4):
                    cut = cut_for(count, width, gram, group)
                    if cut is None:
                        continue
                    fitting += 1
                    assert count <= cut.count and group % cut.positions == 0
                    assert cut.sums + cut.values <= fused_plan.MOST
                    held = cut.together * fused_plan.WARP * cut.registers
                    assert cut.sums + cut.values < cut.registers <= 255
                    assert held <= fused_plan.REGISTERS and cut.together % 4 == 0
                    named = cut.places if gram else cut.places.diagonal()
                    assert named.min() >= cut.width * cut.count and named.max() < cut.sums - 1
    assert fitting > 500


@on_a_gpu
@pytest.mark.parametrize(
    ("count", "width", "dim", "extras"),
    [
        # `by`: how many neighbours a thread reads, of four bytes and of two; None: torch does it
        (10, 10, 100_003, {"by": (1, 1)}),
        (10, 10, 100_003, {"by": (1, 1), "gram_of": np.array([7, 0, 3])}),
        (10, 10, 100_002, {"by": (2, 2), "apart": 2, "base": True}),
        (10, 10, 100_000, {"by": (2, 4), "apart": 4}),
        (10, 10, 100_000, {"by": (2, 2), "apart": 4, "gram_of": np.arange(10)}),  # four do not fit
        (10, 10, 100_000, {"by": (1, 1), "apart": 4, "first": 1}),  # rows begin in between
        (7, 4, 33, {"by": (1, 1), "gram_of": np.array([2]), "base": True}),
        (12, 0, 5_000, {"by": (2, 4), "apart": 8, "base": True}),  # no basis
        (13, 10, 5_000, {"by": (2, 2), "apart": 4}),  # fits only if not filled up to a group
        (5, 6, 5_000, {"by": (2, 4), "apart": 4, "rows": np.array([5, 0, 2])}),
        (10, 20, 5_000, {"by": None}),  # too many sums for a thread
        (20, 10, 5_000, {"by": None, "gram_of": np.arange(20)}),
        (20, 40, 5_000, {"by": None, "base": True, "rows": np.arange(39, 2, -1)}),
        (200, 3, 5_000, {"by": None}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("lying", ["updates in a matrix", "updates apart"])
@pytest.mark.usefixtures("short")
def test_fused_pass(count: int, width: int, dim: int, extras: Any, lying: str, dtype: str) -> None:
    """The Triton kernel against NumPy in float64, with rows further apart than they are long."""
    draw = np.random.default_rng(10)
    kind = getattr(torch, dtype)
    first, apart = extras.get("first", 0), dim + extras.get("apart", 3)

    def rows_of(many: int) -> torch.Tensor:
        drawn = torch.tensor(draw.standard_normal((many, apart))).to("cuda", kind)
        return drawn[:, first : first + dim]

    updates, basis = rows_of(count), rows_of(width)
    exact = host(updates.cpu()), host(basis.cpu())
    base = torch.tensor(draw.standard_normal(dim)) if "base" in extras else None
    used = len(extras["rows"]) if "rows" in extras else width
    numbers = draw.standard_normal(count), draw.standard_normal(used)
    more = {"base_scale": -0.7} | {k: v for k, v in extras.items() if k in ("rows", "gram_of")}

    if lying == "updates apart":  # the rows are where they were
        updates = Vectors(list(updates))
    far = None if base is None else base.cuda()
    pairs = len(extras.get("gram_of", ())) > 1
    plan = plan_for(updates, basis if width else None, more.get("rows"), far, gram=pairs)
    by = extras["by"]
    if isinstance(updates, Vectors):  # of which each begins where it likes
        assert (plan is None) == (by is None)
    else:
        assert (plan and plan.cut.positions) == (by and by[dtype != "float32"])

    found = in_torch.one_pass(
        updates,
        numbers[0],
        basis,
        numbers[1],
        base=far,
        **more,
    )

    expected = in_numpy.one_pass(
        exact[0],
        numbers[0],
        exact[1],
        numbers[1],
        base=None if base is None else base.numpy(),
        **more,
    )
    assert found.delta.is_cuda and found.delta.dtype == torch.float32
    close(found.delta.cpu(), expected.delta, 1e-5)
    for name in ("products", "squared_norms", "gram", "delta_squared_norm"):
        close(getattr(found, name), getattr(expected, name), 1e-5)


@on_a_gpu
@pytest.mark.parametrize("sent", ["a matrix", "vectors", "in turns"])
@pytest.mark.parametrize("reply", ["refuse", "drop"])
@pytest.mark.usefixtures("short")
def test_columns_on_a_gpu_are_those_of_the_host(reply: str, sent: str) -> None:
    """Rounds with and without core clients; one is refused, or goes on without its bad client."""
    rule = make_rule("fedsteer", core_set=[0, 1, 2], ridge=0.5, bad_clients=reply)
    dim, draw = 5_000, torch.Generator().manual_seed(2)
    near, far = (rule.init(dim, np.full(20, 3.0)) for _ in range(2))

    def far_round(number: int, clients: list[int], updates: Any, chances: Any) -> Round:
        if sent == "a matrix" or (sent == "in turns" and number % 2):
            return Round(
                number=number, clients=clients, updates=updates.cuda(), probabilities=chances
            )
        vectors = [update.cuda() for update in updates]
        return Round(number=number, clients=clients, updates=vectors, probabilities=chances)

    for number, clients in enumerate([[0, 1, 2, 3], [7, 1, 8], [0, 1, 2], [9, 2, 0], [5, 6]], 1):
        updates = torch.randn(len(clients), dim, generator=draw)
        chances = np.full(len(clients), 0.3)
        if number in (3, 4):
            spoilt = updates.clone()
            spoilt[1, 5] = torch.nan
            late = far_round(number, clients, spoilt, chances)
            if reply == "drop":
                near = rule.step(
                    near,
                    Round(number=number, clients=clients, updates=spoilt, probabilities=chances),
                ).state
                far = rule.step(far, late).state
                continue
            with pytest.raises(RoundRefused, match="non-finite"):
                rule.step(far, late)
        near = rule.step(
            near, Round(number=number, clients=clients, updates=updates, probabilities=chances)
        ).state
        far = rule.step(far, far_round(number, clients, updates, chances)).state
        here, there = (state.memory.own for state in (near, far))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(in_torch.to_host(there.columns.rows)[0], here.columns.rows)
        np.testing.assert_allclose(there.columns.gram, here.columns.gram, rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(
            there.coordinates.stored.values, here.coordinates.stored.values, rtol=1e-4, atol=1e-4
        )
