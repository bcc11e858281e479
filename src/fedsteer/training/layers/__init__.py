"""Known layers: forward and backward of many clients at once, by formula.

known           which networks are stacks of known layers
formula         the gradient of such a network
basic           linear, convolution, flatten, and what all layers share
convolution     stacked convolutions by torch, and by Triton in `convolution_kernels`, which launch
                `convolution_programs`
residual        batch norm (by Triton in `residual_kernels`), residual block, mean over pixels

A layer's activation is "relu", "tanh" or "" for none.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from fedsteer.gpu import kernels_beside

_threshold_backward = torch.ops.aten.threshold_backward.default  # looked up once: a call is short


def operations(images: Tensor, name: str) -> Any:
    """The module `name` of this folder, or its Triton kernels if these images allow them."""
    plain = f"{__name__}.{name}"
    return kernels_beside(images, f"{plain}_kernels") or sys.modules[plain]


def activate_(values: Tensor, activation: str) -> Tensor:
    """The activation, in place."""
    if activation == "relu":
        return values.relu_()
    return values.tanh_() if activation == "tanh" else values


def activation_gradient(outputs: Tensor, back: Tensor, activation: str) -> Tensor:
    """The gradient before an activation with these outputs."""
    if activation == "relu":
        return _threshold_backward(back, outputs, 0)
    return back * (1 - outputs * outputs) if activation == "tanh" else back
