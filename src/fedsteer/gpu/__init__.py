"""Whether Triton kernels can be used: on a GPU, below float64, and where Triton itself works.

To be installed is not enough for Triton: it needs a compiler for C, Python's headers and a GPU that
it knows, and images made to run torch often lack the first two. So every GPU has a trial, once.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedsteer.errors import first_line


def kernels_beside(values: Any, module: str) -> Any:
    """The Triton kernels in `module` for these numbers of torch, or None: then torch does it."""
    return _imported(module, values.device, values.dtype)


@cache
def _imported(module: str, device: Any, dtype: Any) -> Any:
    usable = device.type == "cuda" and dtype.itemsize < 8 and triton_works(device)
    return import_module(module) if usable else None


@cache
def triton_works(device: Any) -> bool:
    """Whether a kernel runs there; where Triton is installed and none does, a warning says why."""
    if find_spec("triton") is None:
        return False
    try:
        import_module(f"{__name__}.trial").run(device)
    except Exception as error:  # whatever it is, torch can do without
        reason = first_line(error)
        warnings.warn(
            f"Triton cannot be used here ({reason}): torch's own operations are, which take longer",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True
