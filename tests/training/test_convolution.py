"""The Triton kernels equal their plain references; skipped if there is no GPU."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from fedsteer.training.layers import convolution as reference
from fedsteer.training.layers import operations
from fedsteer.training.layers.convolution import Window

needs_gpu = pytest.mark.skipif(
    find_spec("triton") is None or not torch.cuda.is_available(), reason="no GPU, or no Triton"
)
# window, channels in and out; the last three as residual networks have them
SHAPES = [
    (Window(5, 1, 2), 1, 16),
    (Window(5, 1, 2), 16, 24),
    (Window(3), 4, 6),
    (Window(3, 1, 1), 64, 70),
    (Window(3, 2, 1), 64, 128),
    (Window(1, 2), 70, 64),
    (Window(3, 2, 1), 2, 4),
]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def close(found: Tensor, expected: Tensor) -> None:
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5 * scale)


def filters_of(window: Window, inside: int, outside: int) -> Tensor:
    """A view into something wider, as parameters are."""
    size = window.size**2 * inside * outside
    shape = (window.size, window.size, inside, outside)
    return drawn(3, size + 32)[:, :size].unflatten(1, shape)


@needs_gpu
@pytest.mark.parametrize(("window", "inside", "outside"), SHAPES)
@pytest.mark.parametrize("activation", ["", "relu", "tanh"])
def test_forward_and_backward(window: Window, inside: int, outside: int, activation: str) -> None:
    images, filters = drawn(3, 4, 9, 8, inside), filters_of(window, inside, outside)
    bias = drawn(3, outside + 3)[:, :outside]
    kernels = operations(images.cuda(), "convolution")
    expected, _ = reference.convolve(images, filters, window, True, bias, activation)
    beside = drawn(*expected.shape)
    given = (images.cuda(), filters.cuda(), window, True, bias.cuda(), activation, False)
    close(kernels.convolve(*given, None)[0], expected)
    close(kernels.convolve(*given, beside.cuda())[0], expected + beside)
    back = beside
    into, found_into = torch.zeros(filters.shape), torch.zeros(filters.shape, device="cuda")
    kernels.filter_gradient(images.cuda(), back.cuda(), window, found_into, True)
    reference.filter_gradient(images, back, window, into)
    close(found_into, into)
    given = (back.cuda(), filters.cuda(), window, (9, 8), True)
    expected = reference.input_gradient(back, filters, window, (9, 8))
    close(kernels.input_gradient(*given, None), expected)
    close(kernels.input_gradient(*given, images.cuda()), expected + images)


@needs_gpu
def test_bfloat16_differs_by_its_rounding_only() -> None:
    window = Window(3, 2, 1)
    images, filters = drawn(3, 4, 8, 8, 64).bfloat16(), filters_of(window, 64, 128).bfloat16()
    wide, wide_filters = images.float(), filters.float()
    expected, _ = reference.convolve(wide, wide_filters, window)
    kernels = operations(images.cuda(), "convolution")
    found, _ = kernels.convolve(images.cuda(), filters.cuda(), window, True, None, "", False, None)
    found = found.float().cpu()
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-1)
    back = found.bfloat16()
    into, found_into = torch.zeros(filters.shape), torch.zeros(filters.shape, device="cuda")
    kernels.filter_gradient(images.cuda(), back.cuda(), window, found_into, True)
    reference.filter_gradient(wide, back.float(), window, into)
    close(found_into, into)


@needs_gpu
@pytest.mark.parametrize(("window", "inside", "outside"), SHAPES[:3])
@pytest.mark.parametrize("activation", ["", "relu", "tanh"])
def test_pooling(window: Window, inside: int, outside: int, activation: str) -> None:
    images, filters = drawn(3, 5, 11, 10, inside), filters_of(window, inside, outside)
    kernels = operations(images.cuda(), "convolution")
    pooled, which = kernels.convolve(
        images.cuda(), filters.cuda(), window, True, None, activation, True, None
    )
    expected, places = reference.convolve(images, filters, window, True, None, activation, True)
    close(pooled, expected)
    back, sides = drawn(*pooled.shape), (window.over(11), window.over(10))
    close(kernels.spread(back.cuda(), which, sides), reference.spread(back, places, sides))


@needs_gpu
def test_of_equal_pixels_the_first_is_chosen() -> None:
    images, filters = torch.full((1, 1, 4, 4, 1), 0.25), torch.ones(1, 1, 1, 1, 16)
    _, which = operations(images.cuda(), "convolution").convolve(
        images.cuda(), filters.cuda(), Window(1), True, None, "", True, None
    )
    assert not which.any()


def test_a_spread_gradient_is_that_of_max_pooling() -> None:
    images = drawn(2, 3, 7, 6, 4)
    images[:, :, :4, :3] = 0.25  # blank background: every pixel of a square is the largest
    same = torch.eye(4).expand(2, 1, 1, 4, 4)  # a convolution that changes nothing
    pooled, which = reference.convolve(images, same, Window(1), pools=True)
    assert which is not None
    back = drawn(*pooled.shape)
    plain = images.flatten(0, 1).permute(0, 3, 1, 2).requires_grad_()
    expected = torch.nn.functional.max_pool2d(plain, 2)
    torch.testing.assert_close(pooled.flatten(0, 1), expected.permute(0, 2, 3, 1))
    (gradient,) = torch.autograd.grad(expected, plain, back.flatten(0, 1).permute(0, 3, 1, 2))
    found = reference.spread(back, which, (7, 6)).flatten(0, 1)
    torch.testing.assert_close(found, gradient.permute(0, 2, 3, 1))
