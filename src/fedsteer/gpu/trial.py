"""The smallest possible Triton kernel. Importing this needs Triton."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl

OLDEST = (3, 3)  # older versions do not accept tuples as kernel arguments


@triton.jit
def one(targets):
    tl.store(targets[0], 1.0)


def run(device: torch.device) -> None:
    """Raise if kernels do not work on this GPU."""
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < OLDEST:
        raise RuntimeError(f"its version, {triton.__version__}, is too old")
    with torch.cuda.device(device):
        target = torch.zeros(1, device=device)
        one[(1,)]((target,))
        if target.item() != 1.0:
            raise RuntimeError("a kernel wrote nothing")
