"""Whether Triton kernels can be used: on a GPU, below float64, and only if Triton itself works.

Triton needs more than its package: a C compiler, Python's headers and a GPU that it supports.
Images made to run torch often lack the first two. So each GPU gets one trial.
"""

import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedsteer.errors import first_line


def kernels_beside(values: Any, module: str) -> Any:
    """The Triton kernels in `module` if they can take this torch tensor, else None."""
    on_gpu = values.device.type == "cuda"
    usable = on_gpu and values.dtype.itemsize < 8 and triton_works(values.device)
    return import_module(module) if usable else None


@cache
def triton_works(device: Any) -> bool:
    """Whether a kernel runs there. If Triton is installed and fails, a warning says why."""
    if find_spec("triton") is None:
        return False
    try:
        import_module(f"{__name__}.trial").run(device)
    except Exception as error:  # torch works without Triton
        reason = first_line(error)
        warnings.warn(
            f"Triton cannot be used here ({reason}); torch's own operations are slower",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True
