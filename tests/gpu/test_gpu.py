"""Triton is used only if it works, whatever the reason it does not."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedsteer import gpu


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """Forget what is known about this machine, before and after each test."""
    gpu.triton_works.cache_clear()
    yield
    gpu.triton_works.cache_clear()


def tensor(cuda: bool = True, size: int = 4) -> Any:
    device = torch.device("cuda:0" if cuda else "cpu")
    dtype = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[size]
    return SimpleNamespace(device=device, dtype=dtype)


def installed(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """Triton is installed, and `run` is its trial."""
    monkeypatch.setattr(gpu, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "fedsteer.gpu.trial", SimpleNamespace(run=run))  # type: ignore[arg-type]


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gpu.kernels_beside(tensor(), "json") is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("Failed to find C compiler.\nSpecify CC."), "Failed to find C compiler."),
        (ImportError(), "ImportError"),
    ],
)
def test_installed_but_useless(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(device: torch.device) -> None:
        tried.append(1)
        raise error

    installed(monkeypatch, fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert gpu.kernels_beside(tensor(), "json") is None
        assert gpu.kernels_beside(tensor(), "ast") is None
    assert len(caught) == len(tried) == 1
    assert f"({reason})" in str(caught[0].message)


def test_only_if_it_can_help(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[torch.device] = []
    installed(monkeypatch, tried.append)
    assert gpu.kernels_beside(tensor(cuda=False), "json") is None
    assert gpu.kernels_beside(tensor(size=8), "json") is None
    assert not tried
    assert gpu.kernels_beside(tensor(), "json") is sys.modules["json"]
    assert gpu.kernels_beside(tensor(size=2), "json") is sys.modules["json"]
    assert tried == [torch.device("cuda:0")]


def test_each_gpu_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(device: str) -> None:
        if device == "cuda:0":
            raise RuntimeError("too old")

    installed(monkeypatch, run)
    with pytest.warns(RuntimeWarning, match="too old"):
        assert not gpu.triton_works("cuda:0")
    assert gpu.triton_works("cuda:1")
