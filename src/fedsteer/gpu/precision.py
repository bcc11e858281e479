"""How exactly torch multiplies float32 numbers, whatever the program around us allows.

A program may let torch round the factors (`torch.set_float32_matmul_precision("high")` and its
kind). Torch 2.9 and later have two sets of names for that: setting an older one sets the newer ones
with it, but after a newer one was set the older ones can no longer be read. So the older ones are
used, which code that runs in between may ask for, unless somebody has used the newer; both are put
back as they were. All of them belong to the process: threads see what others have set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

Answer = TypeVar("Answer")
cudnn = torch.backends.cudnn
AS_IT_IS = nullcontext()
EXACT, INHERITED = "ieee", "none"  # "none": as the backend as a whole, which is exact by itself


def _backends(*names: str) -> list[Any]:
    """By their newer names, where torch has those."""
    return [attrgetter(name)(torch.backends) for name in names if hasattr(cudnn, "conv")]


MATRICES = _backends("cuda.matmul")
ON_THE_HOST = _backends("mkldnn.matmul")
CONVOLUTIONS = _backends("cudnn.conv", "cudnn.rnn")


@contextmanager
def precision(exact: bool, like: Tensor) -> Iterator[None]:
    """On a GPU: float32 products where `exact`, else tf32, and the same bits every time.

    Torch by itself allows tf32 in convolutions.
    """
    if not like.is_cuda:
        yield
        return
    with _products(exact, MATRICES), _convolutions(exact):
        yield


def exact_products(like: Any) -> AbstractContextManager[None]:
    """Where arrays like this one lie, torch rounds no factor of a product of matrices."""
    backends = MATRICES if like.device.type == "cuda" else ON_THE_HOST
    return _products(True, backends) if rounding(backends) else AS_IT_IS


def rounding(backends: list[Any]) -> bool:
    """Whether products of matrices are anything but exact there."""
    if not backends:  # an older torch has one level for all
        return bool(torch.get_float32_matmul_precision() != "highest")
    return any(backend.fp32_precision not in (EXACT, INHERITED) for backend in backends)


@contextmanager
def _products(exact: bool, backends: list[Any]) -> Iterator[None]:
    level = _answer(torch.get_float32_matmul_precision)
    changing = backends if level is None else [*MATRICES, *ON_THE_HOST]
    before = [backend.fp32_precision for backend in changing]
    try:
        if level is not None:
            torch.set_float32_matmul_precision("highest" if exact else "high")
        else:
            _set(changing, exact)
        yield
    finally:
        if level is not None:
            torch.set_float32_matmul_precision(level)
        _put_back(changing, before)


@contextmanager
def _convolutions(exact: bool) -> Iterator[None]:
    old_names = _answer(lambda: cudnn.allow_tf32) is not None
    if old_names and not (CONVOLUTIONS and rounding([cudnn])):  # those leave it to the whole then
        flags = {"enabled": True, "benchmark": False, "deterministic": True}
        with cudnn.flags(**flags, allow_tf32=not exact):
            yield
        return
    before = [backend.fp32_precision for backend in CONVOLUTIONS]
    how = cudnn.enabled, cudnn.benchmark, cudnn.deterministic
    try:
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = True, False, True
        _set(CONVOLUTIONS, exact)
        yield
    finally:
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = how
        _put_back(CONVOLUTIONS, before)


def _answer(question: Callable[[], Answer]) -> Answer | None:
    """None where torch refuses an older name."""
    try:
        return question()
    except RuntimeError:
        return None


def _set(backends: list[Any], exact: bool) -> None:
    for backend in backends:
        backend.fp32_precision = EXACT if exact else "tf32"


def _put_back(backends: list[Any], before: list[str]) -> None:
    for backend, value in zip(backends, before, strict=True):
        backend.fp32_precision = INHERITED  # if that is what it was
        if backend.fp32_precision != value:
            backend.fp32_precision = value
