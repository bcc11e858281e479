"""The Triton pass on a GPU: each way to read, against NumPy in float64."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer.steering.kernels import numpy as in_numpy
from fedsteer.steering.kernels import torch as in_torch
from tests.steering.test_kernels import close, host


@pytest.mark.skipif(
    find_spec("triton") is None or not torch.cuda.is_available(), reason="no GPU, or no Triton"
)
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
def test_fused_pass(
    count: int, width: int, dim: int, extras: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Triton kernel against NumPy in float64, with rows further apart than they are long."""
    from fedsteer.steering.kernels import fused

    monkeypatch.setattr(fused, "SMALLEST", 1)
    draw = np.random.default_rng(10)
    kind = getattr(torch, dtype)
    first, apart = extras.get("first", 0), dim + extras.get("apart", 3)

    def rows_of(many: int) -> torch.Tensor:
        drawn = torch.tensor(draw.standard_normal((many, apart))).to("cuda", kind)
        return drawn[:, first : first + dim]

    updates, basis = rows_of(count), rows_of(width)
    base = torch.tensor(draw.standard_normal(dim)) if "base" in extras else None
    used = len(extras["rows"]) if "rows" in extras else width
    numbers = draw.standard_normal(count), draw.standard_normal(used)
    more = {"base_scale": -0.7} | {k: v for k, v in extras.items() if k in ("rows", "gram_of")}

    far = None if base is None else base.cuda()
    pairs = len(extras.get("gram_of", ())) > 1
    cut = fused.plan_for(updates, basis if width else None, more.get("rows"), far, gram=pairs)
    by = extras["by"]
    assert (cut and cut.positions) == (by and by[dtype != "float32"])

    calls: list[None] = []
    found = in_torch.one_pass(
        updates,
        numbers[0],
        basis,
        numbers[1],
        base=far,
        meanwhile=lambda: calls.append(None),
        **more,
    )

    assert len(calls) == 1
    exact = host(updates.cpu()), numbers[0], host(basis.cpu()), numbers[1]
    expected = in_numpy.one_pass(*exact, base=None if base is None else base.numpy(), **more)
    assert found.delta.is_cuda and found.delta.dtype == torch.float32
    close(found.delta.cpu(), expected.delta, 1e-5)
    for name in ("products", "squared_norms", "gram", "delta_squared_norm"):
        close(getattr(found, name), getattr(expected, name), 1e-5)
