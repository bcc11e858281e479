"""Where Triton kernels can be used (on a GPU, below float64), and how exact a GPU multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def kernels_beside(values: Tensor, name: str) -> Any:
    """The module `fedsteer.training.<name>` for these values, or None: then torch does it."""
    usable = values.is_cuda and values.dtype != torch.float64
    return _imported(name) if usable else None


@cache
def _imported(name: str) -> Any:
    return import_module(f"fedsteer.training.{name}") if find_spec("triton") else None


@contextmanager
def precision(exact: bool, like: Tensor) -> Iterator[None]:
    """On a GPU: float32 products where `exact`, else tf32, and the same bits every time.

    Torch by itself allows tf32 in convolutions.
    """
    if not like.is_cuda:
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = not exact
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=not exact
        ):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
