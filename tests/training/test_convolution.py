"""The Triton kernels equal their plain references; on a GPU only, elsewhere there are none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedsteer.training import convolution

needs_gpu = pytest.mark.skipif(
    convolution.triton is None or not torch.cuda.is_available(), reason="no GPU, or no Triton"
)
SHAPES = [(5, 2, 1, 16), (5, 2, 16, 24), (3, 0, 4, 6)]  # size, padding, channels in and out


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@needs_gpu
@pytest.mark.parametrize(("size", "padding", "inside", "outside"), SHAPES)
@pytest.mark.parametrize("activation", ["", "relu", "tanh"])
def test_convolve_and_filter_gradient(
    size: int, padding: int, inside: int, outside: int, activation: str
) -> None:
    images, filters = drawn(3, 4, 9, 8, inside), drawn(3, size * size * inside, outside)
    bias = drawn(3, outside + 3)[:, :outside]
    expected = convolution.reference_convolve(images, filters, size, padding, bias, activation)
    found = convolution.convolve(
        images.cuda(), filters.cuda(), size, padding, True, bias.cuda(), activation
    )
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    back = drawn(*expected.shape)
    torch.testing.assert_close(
        convolution.filter_gradient(images.cuda(), back.cuda(), size, padding, True).cpu(),
        convolution.reference_filter_gradient(images, back, size, padding),
        rtol=1e-4,
        atol=1e-3,
    )


@needs_gpu
@pytest.mark.parametrize("activation", ["", "relu", "tanh"])
def test_unpool_gives_the_gradient_to_the_first_of_equal_pixels(activation: str) -> None:
    images = drawn(2, 3, 7, 6, 4)
    images[:, :, :4, :3] = 0.25  # blank background: every pixel of a square is the largest
    images = convolution.activate_(images, activation)
    pooled = convolution.pool(images)
    back = drawn(*pooled.shape)
    found = convolution.unpool(images.cuda(), pooled.cuda(), back.cuda(), activation)
    expected = convolution.reference_unpool(images, pooled, back, activation)
    torch.testing.assert_close(found.cpu(), expected)
