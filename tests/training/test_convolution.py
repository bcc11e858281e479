"""The Triton kernels equal their plain references; on a GPU only, elsewhere there are none."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from fedsteer.training import convolution

needs_gpu = pytest.mark.skipif(
    find_spec("triton") is None or not torch.cuda.is_available(), reason="no GPU, or no Triton"
)
SHAPES = [(5, 2, 1, 16), (5, 2, 16, 24), (3, 0, 4, 6)]  # size, padding, channels in and out


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-3)


@needs_gpu
@pytest.mark.parametrize(("size", "padding", "inside", "outside"), SHAPES)
@pytest.mark.parametrize("activation", ["", "relu", "tanh"])
def test_convolve_and_filter_gradient(
    size: int, padding: int, inside: int, outside: int, activation: str
) -> None:
    images, filters = drawn(3, 4, 9, 8, inside), drawn(3, size * size * inside, outside)
    bias = drawn(3, outside + 3)[:, :outside]
    expected = convolution.reference_convolve(images, filters, size, padding, bias, activation)
    where = (size, padding, True)
    close(
        convolution.convolve(images.cuda(), filters.cuda(), *where, bias.cuda(), activation),
        expected,
    )
    back = drawn(*expected.shape)
    close(
        convolution.filter_gradient(images.cuda(), back.cuda(), *where),
        convolution.reference_filter_gradient(images, back, size, padding),
    )


@needs_gpu
@pytest.mark.parametrize(("size", "padding", "inside", "outside"), SHAPES)
@pytest.mark.parametrize("activation", ["", "relu", "tanh"])
def test_pooled_forward_and_backward(
    size: int, padding: int, inside: int, outside: int, activation: str
) -> None:
    images, filters = drawn(2, 5, 11, 10, inside), drawn(2, size * size * inside, outside)
    where = (size, padding, True)
    pooled, which = convolution.convolve_and_pool(
        images.cuda(), filters.cuda(), *where, None, activation
    )
    values = convolution.reference_convolve(images, filters, size, padding, None, activation)
    close(pooled, convolution.reference_pool(values)[0])
    back, rows, columns = drawn(*pooled.shape), values.shape[2], values.shape[3]
    full = convolution.reference_spread(back, which.cpu(), rows, columns)
    close(
        convolution.filter_gradient(images.cuda(), back.cuda(), *where, which),
        convolution.reference_filter_gradient(images, full, size, padding),
    )
    way_back = convolution.turned(filters, size, inside)
    close(
        convolution.convolve(
            back.cuda(),
            way_back.cuda(),
            size,
            size - 1 - padding,
            True,
            spread=(which, rows, columns),
        ),
        convolution.reference_convolve(full, way_back, size, size - 1 - padding),
    )


@needs_gpu
def test_of_equal_pixels_the_first_is_chosen() -> None:
    images, filters = torch.full((1, 1, 4, 4, 1), 0.25), torch.ones(1, 1, 16)
    _, which = convolution.convolve_and_pool(images.cuda(), filters.cuda(), 1, 0, True)
    assert not which.any()


def test_a_spread_gradient_is_that_of_max_pooling() -> None:
    images = drawn(2, 3, 7, 6, 4)
    images[:, :, :4, :3] = 0.25  # blank background: every pixel of a square is the largest
    pooled, which = convolution.reference_pool(images)
    back = drawn(*pooled.shape)
    plain = images.flatten(0, 1).permute(0, 3, 1, 2).requires_grad_()
    expected = torch.nn.functional.max_pool2d(plain, 2)
    torch.testing.assert_close(pooled.flatten(0, 1), expected.permute(0, 2, 3, 1))
    (gradient,) = torch.autograd.grad(expected, plain, back.flatten(0, 1).permute(0, 3, 1, 2))
    found = convolution.reference_spread(back, which, 7, 6).flatten(0, 1)
    torch.testing.assert_close(found, gradient.permute(0, 2, 3, 1))
