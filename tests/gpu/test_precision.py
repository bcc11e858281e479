"""Products are exact whatever the surrounding program allows, and its settings stay unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer.gpu.precision import (
    CONVOLUTIONS,
    CPU_PRODUCTS,
    GPU_PRODUCTS,
    exact_products,
    precision,
    rounding,
)
from fedsteer.steering.kernels import Sweep
from fedsteer.steering.kernels import torch as in_torch
from fedsteer.steering.kernels.vectors import Vectors

matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
NEWER = [*GPU_PRODUCTS, *CPU_PRODUCTS, *CONVOLUTIONS]


def old_name() -> None:
    matmul.allow_tf32 = True


def new_name() -> None:
    matmul.fp32_precision = "tf32"


def new_name_for_all() -> None:
    torch.backends.fp32_precision = "tf32"


def new_name_of_convolutions() -> None:
    cudnn.conv.fp32_precision = "ieee"


ALLOWING = {
    "as torch is": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "old name": old_name,
    "new name": new_name,
    "new name for all": new_name_for_all,
    "new name of convolutions": new_name_of_convolutions,
}


@pytest.fixture(params=ALLOWING)
def allowed(request: pytest.FixtureRequest) -> Iterator[str]:
    """The program lets torch round factors; afterwards it does not."""
    if "new" in request.param and not NEWER:
        pytest.skip("this torch has no such name")
    convolutions = [backend.fp32_precision for backend in CONVOLUTIONS]
    ALLOWING[request.param]()
    yield request.param
    torch.set_float32_matmul_precision("highest")
    if NEWER:
        torch.backends.fp32_precision = "none"
    for backend in (*GPU_PRODUCTS, *CPU_PRODUCTS):
        backend.fp32_precision = "none"
    for backend, value in zip(CONVOLUTIONS, convolutions, strict=True):
        backend.fp32_precision = value


def asked(question: Callable[[], Any]) -> Any:
    """What torch answers, or that it refuses."""
    try:
        return question()
    except RuntimeError:
        return "refused"


def seen() -> list[Any]:
    """Everything a program can ask torch about its products."""
    old = [lambda: matmul.allow_tf32, torch.get_float32_matmul_precision, lambda: cudnn.allow_tf32]
    rest = [cudnn.enabled, cudnn.benchmark, cudnn.deterministic]
    return [*map(asked, old), *rest, *[backend.fp32_precision for backend in NEWER]]


def array_on(kind: str) -> Any:
    return SimpleNamespace(device=SimpleNamespace(type=kind), is_cuda=kind == "cuda")


@pytest.mark.parametrize(("kind", "backends"), [("cuda", GPU_PRODUCTS), ("cpu", CPU_PRODUCTS)])
def test_exact_products(kind: str, backends: Any, allowed: str) -> None:
    before = seen()
    with exact_products(array_on(kind)):
        assert not rounding(backends)
    assert seen() == before


@pytest.mark.parametrize("exact", [True, False])
def test_training_uses_the_precision_asked_for(exact: bool, allowed: str) -> None:
    before = seen()
    with precision(exact, array_on("cuda")):
        assert [rounding([one]) for one in (*GPU_PRODUCTS, *CONVOLUTIONS)] == [not exact] * (
            len(GPU_PRODUCTS) + len(CONVOLUTIONS)
        )
        assert cudnn.enabled and cudnn.deterministic and not cudnn.benchmark
        if allowed in ("as torch is", "high", "medium", "old name"):
            # torch.compile and recurrent networks read or set the older names.
            assert asked(lambda: matmul.allow_tf32) == asked(lambda: cudnn.allow_tf32) != exact
            assert asked(torch.get_float32_matmul_precision) == ("highest" if exact else "high")
            with cudnn.flags(enabled=False):
                assert not cudnn.enabled
    assert seen() == before
    with precision(exact, array_on("cpu")):
        assert seen() == before


@pytest.mark.skipif(not NEWER, reason="this torch has no such name")
def test_inherited_settings_are_inherited_afterwards() -> None:
    try:
        torch.backends.fp32_precision = "tf32"
        for kind in ("cuda", "cpu"):
            with exact_products(array_on(kind)):
                pass
        torch.backends.fp32_precision = "ieee"
        assert {backend.fp32_precision for backend in (*GPU_PRODUCTS, *CPU_PRODUCTS)} == {"ieee"}
    finally:
        torch.backends.fp32_precision = "none"


def test_settings_come_back_after_an_error(allowed: str) -> None:
    before = seen()
    for context in (precision(True, array_on("cuda")), exact_products(array_on("cuda"))):
        with pytest.raises(KeyError), context:
            raise KeyError
    assert seen() == before


def test_the_server_multiplies_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """On newer processors a program may allow bfloat16 products."""
    rounded: list[bool] = []

    def spied(function: Any) -> Any:
        def spy(*args: Any, **kwargs: Any) -> Any:
            rounded.append(rounding(CPU_PRODUCTS))
            return function(*args, **kwargs)

        return spy

    monkeypatch.setattr(torch, "mv", spied(torch.mv))
    monkeypatch.setattr(torch, "matmul", spied(torch.matmul))
    updates = torch.ones(2, 5)
    torch.set_float32_matmul_precision("medium")
    try:
        in_torch.one_pass(Sweep(updates=updates, weights=np.ones(2)))
        in_torch.combine(np.eye(2), Vectors([*updates]))
        assert rounded == [False, False] and rounding(CPU_PRODUCTS)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dim", [70_000, 5_000_000])
def test_on_a_gpu(dim: int, allowed: str) -> None:
    """Below and above the length from which the Triton pass is used."""
    draw = torch.Generator().manual_seed(3)
    updates, basis = (torch.randn(10, dim, generator=draw) for _ in range(2))
    exact = basis.double() @ updates.double().T
    sweep = Sweep(
        updates=updates.cuda(),
        weights=np.full(10, 0.1),
        basis=basis.cuda(),
        coefficients=np.full(10, 0.1),
        gram_of=np.arange(3),
    )
    result = in_torch.one_pass(sweep)
    distance = np.abs(result.products - exact.numpy()).max()
    # With factors rounded to ten bits, the error would be a hundred times as large.
    assert distance < 2e-6 * dim**0.5 * 10
    mixed = in_torch.combine(np.full((1, 10), 0.1), sweep.updates)
    expected = updates.double().mean(dim=0)
    assert (mixed[0].cpu().double() - expected).abs().max() < 1e-6
