"""How exact a GPU multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


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
