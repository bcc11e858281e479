"""Sets how exactly torch multiplies float32 numbers, whatever the surrounding program allows.

A program may let torch round the factors, for example with
`torch.set_float32_matmul_precision("high")`. Since torch 2.9 these settings have two sets of names.
Setting an older name sets the newer ones too, but once a newer one was set the older ones can no
longer be read. So the older names are used, because other code may read them meanwhile, unless the
program has used the newer ones. Afterwards both are as they were. All of these settings belong to
the process: threads see what other threads have set.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

cudnn = torch.backends.cudnn
EXACT, INHERITED = "ieee", "none"  # "none": as its parent setting, which is exact by default
NEWER = hasattr(cudnn, "conv")  # whether torch has the newer names
GPU_PRODUCTS = [torch.backends.cuda.matmul] if NEWER else []
CPU_PRODUCTS = [torch.backends.mkldnn.matmul] if NEWER else []
CONVOLUTIONS = [cudnn.conv, cudnn.rnn] if NEWER else []


@contextmanager
def precision(exact: bool, like: Tensor) -> Iterator[None]:
    """On a GPU: float32 products if `exact`, else tf32, and the same bits every time.

    By default torch allows tf32 in convolutions.
    """
    if not like.is_cuda:
        yield
        return
    with _products(exact, GPU_PRODUCTS), _convolutions(exact):
        yield


def exact_products(like: Any) -> AbstractContextManager[None]:
    """On the device of this array, torch rounds no factor of a matrix product."""
    backends = GPU_PRODUCTS if like.device.type == "cuda" else CPU_PRODUCTS
    return _products(True, backends) if rounding(backends) else nullcontext()


def rounding(backends: list[Any]) -> bool:
    """Whether these products may be inexact."""
    if not backends:  # an older torch has one level for all
        return bool(torch.get_float32_matmul_precision() != "highest")
    return any(backend.fp32_precision not in (EXACT, INHERITED) for backend in backends)


@contextmanager
def _products(exact: bool, backends: list[Any]) -> Iterator[None]:
    level = _or_none(torch.get_float32_matmul_precision)
    # The older name changes all of the newer ones.
    changing = backends if level is None else [*GPU_PRODUCTS, *CPU_PRODUCTS]
    before = [backend.fp32_precision for backend in changing]
    try:
        if level is None:
            _set(changing, exact)
        else:
            torch.set_float32_matmul_precision("highest" if exact else "high")
        yield
    finally:
        if level is not None:
            torch.set_float32_matmul_precision(level)
        _restore(changing, before)


@contextmanager
def _convolutions(exact: bool) -> Iterator[None]:
    old_names = _or_none(lambda: cudnn.allow_tf32) is not None
    # If the newer names allow rounding for cudnn as a whole, the older name cannot be used.
    if old_names and not (CONVOLUTIONS and rounding([cudnn])):
        with cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=not exact):
            yield
        return
    before = [backend.fp32_precision for backend in CONVOLUTIONS]
    flags = cudnn.enabled, cudnn.benchmark, cudnn.deterministic
    try:
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = True, False, True
        _set(CONVOLUTIONS, exact)
        yield
    finally:
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = flags
        _restore(CONVOLUTIONS, before)


def _or_none(question: Callable[[], Any]) -> Any:
    """The answer, or None if torch refuses an older name."""
    try:
        return question()
    except RuntimeError:
        return None


def _set(backends: list[Any], exact: bool) -> None:
    for backend in backends:
        backend.fp32_precision = EXACT if exact else "tf32"


def _restore(backends: list[Any], before: list[str]) -> None:
    for backend, value in zip(backends, before, strict=True):
        backend.fp32_precision = INHERITED  # reads as its parent's value, maybe the one before
        if backend.fp32_precision != value:
            backend.fp32_precision = value
