"""The Triton pass: how it is planned, and each way to read against NumPy.

The passes run on a GPU, or anywhere with Triton's interpreter (`TRITON_INTERPRET=1 pytest ...`),
which so far needs NumPy below 2.4.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, RoundRefused, make_rule
from fedsteer.steering.kernels import Sweep, fused_plan
from fedsteer.steering.kernels import numpy as in_numpy
from fedsteer.steering.kernels import torch as in_torch
from fedsteer.steering.kernels.fused_plan import plan_for
from tests.steering.test_kernels import close, host

# Of Triton's interpreter.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
LONG = 100_000 if GPU else 1_000  # several steps of each program
with_triton = pytest.mark.skipif(
    find_spec("triton") is None or not (GPU or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="needs Triton, and a GPU or TRITON_INTERPRET=1",
)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The Triton pass, for short updates too, and on a CPU if there is no GPU."""
    module = import_module(in_torch.FUSED)
    monkeypatch.setattr(module, "SMALLEST", 1)
    if not GPU:
        monkeypatch.setattr(module, "_processors", lambda device: 1)
        monkeypatch.setattr(in_torch, "kernels_beside", lambda like, name: module)
    return module


def test_what_a_thread_holds_fits() -> None:
    """No more registers than there are, and as many programs for each scheduler."""
    fitting = 0
    for count in range(1, 40):
        for width in range(0, 40, 3):
            for gram in (False, True):
                for divisor in (1, 2, 4):
                    plan = plan_for(count, width, picked=False, gram=gram, divisor=divisor)
                    if plan is None:
                        continue
                    fitting += 1
                    assert count <= plan.count and divisor % plan.positions == 0
                    assert plan.sums + plan.values <= fused_plan.MOST
                    held = plan.programs * fused_plan.LANES * plan.registers
                    assert plan.sums + plan.values < plan.registers <= 255
                    assert held <= fused_plan.REGISTERS and plan.programs % 4 == 0
                    named = plan.places if gram else plan.places.diagonal()
                    assert named.min() >= plan.width * plan.count and named.max() < plan.sums - 1
    assert fitting > 500


def test_few_kernels_serve_all_cohorts() -> None:
    """The number of clients changes from round to round; each new size would compile a kernel."""
    plans = {plan_for(m, 6, picked=False, gram=False, divisor=2) for m in range(1, 21)}
    assert {plan.count for plan in plans if plan} == {5, 10, 15, 20}
    picked = {plan_for(m, m, picked=True, gram=False, divisor=2) for m in range(1, 11)}
    assert {(plan.count, plan.width) for plan in picked if plan} == {(5, 5), (10, 10)}


@with_triton
@pytest.mark.parametrize(
    ("count", "width", "dim", "extras"),
    [
        # `by`: how many neighbours a thread reads, of four bytes and of two; None: torch does it
        (10, 10, LONG + 3, {"by": (1, 1)}),
        (10, 10, LONG + 3, {"by": (1, 1), "gram_of": np.array([7, 0, 3])}),
        (10, 10, LONG + 2, {"by": (2, 2), "apart": 2, "base": True}),
        (10, 10, LONG, {"by": (2, 4), "apart": 4}),
        (10, 10, LONG, {"by": (2, 2), "apart": 4, "gram_of": np.arange(10)}),  # 4 do not fit
        (10, 10, LONG, {"by": (1, 1), "apart": 4, "first": 1}),  # rows are not aligned
        (7, 4, 33, {"by": (1, 1), "gram_of": np.array([2]), "base": True}),
        (12, 0, 500, {"by": (2, 4), "apart": 8, "base": True}),  # no basis
        (13, 10, 500, {"by": (2, 2), "apart": 4}),  # fits only without padding
        (5, 6, 500, {"by": (2, 4), "apart": 4, "rows": np.array([5, 0, 2])}),
        (10, 20, 500, {"by": None}),  # too many sums for a thread
        (20, 10, 500, {"by": None, "gram_of": np.arange(20)}),
        (20, 40, 500, {"by": None, "base": True, "rows": np.arange(39, 2, -1)}),
        (200, 3, 500, {"by": None}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_fused_pass(fused: Any, count: int, width: int, dim: int, extras: Any, dtype: str) -> None:
    """The Triton kernel against NumPy in float64, with rows further apart than they are long."""
    draw = np.random.default_rng(10)
    first, apart = extras.get("first", 0), dim + extras.get("apart", 3)
    rows, gram_of = extras.get("rows"), extras.get("gram_of", np.zeros(0, np.int64))

    def rows_of(many: int) -> torch.Tensor:
        drawn = torch.tensor(draw.standard_normal((many, apart)))
        return drawn.to(DEVICE, getattr(torch, dtype))[:, first : first + dim]

    updates, basis = rows_of(count), rows_of(width)
    base = torch.tensor(draw.standard_normal(dim)).to(DEVICE) if "base" in extras else None
    used = width if rows is None else len(rows)
    weights, coefficients = draw.standard_normal(count), draw.standard_normal(used)

    sweep = Sweep(
        updates=updates,
        weights=weights,
        basis=basis,
        coefficients=coefficients,
        rows=rows,
        base=base,
        base_scale=-0.7,
        gram_of=gram_of,
    )
    plan, by = fused.suitable_plan(sweep), extras["by"]
    assert (plan and plan.positions) == (by and by[dtype != "float32"])

    found = in_torch.one_pass(sweep)
    on_host = replace(
        sweep,
        updates=host(updates.cpu()),
        basis=host(basis.cpu()),
        base=None if base is None else base.cpu().numpy(),
    )
    expected = in_numpy.one_pass(on_host)
    assert found.delta.device.type == DEVICE and found.delta.dtype == torch.float32
    close(found.delta.cpu(), expected.delta, 1e-5)
    for name in ("products", "squared_norms", "gram", "delta_squared_norm"):
        close(getattr(found, name), getattr(expected, name), 1e-5)


@with_triton
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_fused_pass_finds_the_bad_client(fused: Any, bad: float) -> None:
    updates = torch.ones(7, 501, device=DEVICE)
    updates[6, 500] = bad
    sweep = Sweep(
        updates=updates,
        weights=np.ones(7),
        basis=torch.ones(3, 501, device=DEVICE),
        coefficients=np.ones(3),
    )
    found = fused.one_pass(sweep)
    assert np.flatnonzero(~np.isfinite(found.squared_norms)).tolist() == [6]
    assert not np.isfinite(found.delta_squared_norm)


@with_triton
@pytest.mark.parametrize("sent", ["a matrix", "vectors", "in turns"])
@pytest.mark.parametrize("reply", ["refuse", "drop"])
@pytest.mark.usefixtures("fused")
def test_columns_are_those_of_numpy(reply: str, sent: str) -> None:
    """Rounds with and without core clients; one is refused, or continues without its bad client."""
    rule = make_rule("fedsteer", core_set=[0, 1, 2], ridge=0.5, bad_clients=reply)
    dim, draw = 500, torch.Generator().manual_seed(2)
    near, far = (rule.init(dim, np.full(20, 3.0)) for _ in range(2))

    def near_round(number: int, clients: list[int], updates: torch.Tensor) -> Round:
        return Round(
            number=number,
            clients=clients,
            updates=updates.numpy(),
            probabilities=np.full(len(clients), 0.3),
        )

    def far_round(number: int, clients: list[int], updates: torch.Tensor) -> Round:
        matrix = updates.to(DEVICE)
        apart = sent == "vectors" or (sent == "in turns" and number % 2 == 0)
        near = near_round(number, clients, updates)
        return replace(near, updates=[*matrix] if apart else matrix)

    for number, clients in enumerate([[0, 1, 2, 3], [7, 1, 8], [0, 1, 2], [9, 2, 0], [5, 6]], 1):
        updates = torch.randn(len(clients), dim, generator=draw)
        if number in (3, 4):
            spoilt = updates.clone()
            spoilt[1, 5] = torch.nan
            late = far_round(number, clients, spoilt)
            if reply == "drop":
                near = rule.step(near, near_round(number, clients, spoilt)).state
                far = rule.step(far, late).state
                continue
            with pytest.raises(RoundRefused, match="non-finite"):
                rule.step(far, late)
        near = rule.step(near, near_round(number, clients, updates)).state
        far = rule.step(far, far_round(number, clients, updates)).state
        here, there = (state.memory.own for state in (near, far))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(in_torch.to_host(there.columns.rows)[0], here.columns.rows)
        np.testing.assert_allclose(there.columns.gram, here.columns.gram, rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(
            there.coordinates.stored.values, here.coordinates.stored.values, rtol=1e-4, atol=1e-4
        )
