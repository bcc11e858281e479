"""Activations and their gradients; a layer's activation is "relu", "tanh" or "" for none."""

import torch
from torch import Tensor

_threshold_backward = torch.ops.aten.threshold_backward.default  # looked up once: a call is short


def activation_gradient(outputs: Tensor, back: Tensor, activation: str) -> Tensor:
    """The gradient before an activation with these outputs."""
    if activation == "relu":
        gradient: Tensor = _threshold_backward(back, outputs, 0)
        return gradient
    return back * (1 - outputs * outputs) if activation == "tanh" else back


def activate_(values: Tensor, activation: str) -> Tensor:
    """The activation, in place."""
    if activation == "relu":
        return values.relu_()
    return values.tanh_() if activation == "tanh" else values
