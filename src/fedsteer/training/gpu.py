"""Triton kernels where they can be used: on a GPU, where Triton is installed, below float64."""

from __future__ import annotations

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
