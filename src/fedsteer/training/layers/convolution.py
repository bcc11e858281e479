"""Convolutions of many clients at once: every client has its own filters.

Libraries see this as one grouped convolution, which they compute slowly. Here a client's
convolution is a matrix product whose left side is gathered on the fly (implicit GEMM), one Triton
program per tile of output pixels, all clients in one launch. Images are (client, sample, row,
column, channel), filters (client, row, column, channel in, channel out).

    forward    y  = gather(x) w + b
    to input   dx = gather(dy) w^T
    to filter  dw = gather(x)^T dy      summed over samples and pixels

If 2 x 2 pooling follows, y is kept in pooled size beside which of the four pixels was largest (the
first, if several are: blank background makes many), and dy is spread by that.

Two modules have the same four functions: `convolution_kernels` by Triton, and
`convolution_reference` in plain torch, slow and obvious. `operations` picks one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsteer.gpu import kernels_beside
from fedsteer.training.layers import convolution_reference

KERNELS = "fedsteer.training.layers.convolution_kernels"


@dataclass(frozen=True)
class Window:
    """A square filter that moves over zero-padded images."""

    size: int
    stride: int = 1
    padding: int = 0

    def over(self, side: int) -> int:
        """How many places there are along a side."""
        return (side + 2 * self.padding - self.size) // self.stride + 1


def operations(images: Tensor) -> Any:
    """The module whose functions take these images."""
    return kernels_beside(images, KERNELS) or convolution_reference
