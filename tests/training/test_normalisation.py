"""Normalisation by formula equals torch's batch norm; the Triton kernels equal the formula."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsteer.training.layers import operations
from fedsteer.training.layers.residual import Normal, normalise, normalise_back


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def given(relu: bool) -> tuple[Tensor, Normal, Tensor, Tensor]:
    images = 3.0 * drawn(3, 5, 6, 7, 20) + 40.0  # far from zero: sums of squares would cancel
    how = Normal(gamma=1.0 + 0.3 * drawn(3, 20), beta=0.2 * drawn(3, 20), eps=1e-5, relu=relu)
    return images, how, drawn(3, 5, 6, 7, 20).flip(0), drawn(3, 5, 6, 7, 20).flip(1)


@pytest.mark.parametrize("relu", [False, True])
def test_forward_and_backward_are_those_of_torch(relu: bool) -> None:
    images, how, back, beside = given(relu)
    found, moments = normalise(images, how)
    results = normalise_back(images, moments, how, back, beside)
    for client in range(3):
        plain = images[client].permute(0, 3, 1, 2).requires_grad_()
        gamma, beta = (part[client].clone().requires_grad_() for part in (how.gamma, how.beta))
        expected = F.batch_norm(plain, None, None, gamma, beta, training=True, eps=how.eps)
        expected = expected.relu() if relu else expected
        torch.testing.assert_close(found[client], expected.permute(0, 2, 3, 1))
        gradients = torch.autograd.grad(
            expected, (plain, gamma, beta), back[client].permute(0, 3, 1, 2)
        )
        torch.testing.assert_close(
            results[0][client], gradients[0].permute(0, 2, 3, 1) + beside[client]
        )
        torch.testing.assert_close(results[1][client], gradients[1])
        torch.testing.assert_close(results[2][client], gradients[2])


@pytest.mark.skipif(
    find_spec("triton") is None or not torch.cuda.is_available(), reason="no GPU, or no Triton"
)
@pytest.mark.parametrize("relu", [False, True])
def test_kernels_equal_the_formula(relu: bool) -> None:
    images, how, back, beside = given(relu)
    expected, moments = normalise(images, how)
    whole = normalise_back(images, moments, how, back, beside)
    here = replace(how, gamma=how.gamma.float().cuda(), beta=how.beta.float().cuda())
    sent = images.float().cuda()
    kernels = operations(sent, "residual")
    found, sums = kernels.normalise(sent, here)
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-4, atol=1e-4)
    results = kernels.normalise_back(sent, sums, here, back.float().cuda(), beside.float().cuda())
    for ours, theirs in zip(results, whole, strict=True):
        torch.testing.assert_close(ours.double().cpu(), theirs, rtol=1e-3, atol=1e-3)
