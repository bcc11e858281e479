"""The smallest Triton kernel there is. Importing this needs Triton."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def one(target):
    tl.store(target, 1.0)


def run() -> None:
    """Raises where kernels do not work."""
    target = torch.zeros(1, device="cuda")
    one[(1,)](target)
    if target.item() != 1.0:
        raise RuntimeError("a kernel wrote nothing")
