"""Activations and their gradients; a layer's activation is "relu", "tanh" or "" for none."""

from __future__ import annotations

import torch
from torch import Tensor

# Looked up once: a call is short.
_threshold_backward = torch.ops.aten.threshold_backward.default
_threshold_backward_into = torch.ops.aten.threshold_backward.grad_input


def activation_gradient(
    outputs: Tensor, back: Tensor, activation: str, into: Tensor | None = None
) -> Tensor:
    """The gradient before an activation with these outputs, written to `into` if given."""
    if activation == "relu":
        found: Tensor = (
            _threshold_backward(back, outputs, 0)
            if into is None
            else _threshold_backward_into(back, outputs, 0, grad_input=into)
        )
        return found
    if activation == "tanh":
        return torch.mul(back, 1 - outputs * outputs, out=into)
    return back if into is None else into.copy_(back)


def activate_(values: Tensor, activation: str) -> Tensor:
    """The activation, in place."""
    if activation == "relu":
        return values.relu_()
    return values.tanh_() if activation == "tanh" else values
