"""The three file formats: IDX arrays, CIFAR records, and lists of indices.

Each reader takes a file's unpacked content and refuses anything that is not exactly what the format
says, naming the file and what is wrong with it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedsteer.data.dataset import Images, Labels
from fedsteer.data.files import Content
from fedsteer.errors import DataError

_UNSIGNED_BYTE = 0x08  # the only element type of IDX files in use for images and labels

_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + math.prod(_CIFAR_SHAPE)  # a label, then red, green and blue row by row


def idx_images(content: Content) -> Images:
    """Gray images of an IDX file, as (n, 1, height, width)."""
    return _idx_array(content, dimensions=3)[:, np.newaxis]


def idx_labels(content: Content, classes: int) -> Labels:
    """The labels of an IDX file."""
    return _in_range(_idx_array(content, dimensions=1), classes, content)


def cifar_records(content: Content, classes: int) -> tuple[Images, Labels]:
    """Images and labels of one file of CIFAR-10's binary version."""
    length = len(content.data)
    if length == 0 or length % _CIFAR_RECORD:
        raise DataError(
            f"{content.path}: {length} bytes are no whole number of {_CIFAR_RECORD}-byte records"
        )
    records = np.frombuffer(content.data, np.uint8).reshape(-1, _CIFAR_RECORD)
    images = np.ascontiguousarray(records[:, 1:]).reshape(-1, *_CIFAR_SHAPE)
    return images, _in_range(records[:, 0], classes, content)


def index_list(content: Content, population: int) -> NDArray[np.int64]:
    """Distinct numbers below `population`, one per line."""
    lines = content.data.split()
    # isdigit on bytes admits ASCII digits only; more than 18 of them would not fit an int64.
    if not lines or not all(line.isdigit() and len(line) <= 18 for line in lines):
        raise DataError(f"{content.path}: must hold one number per line")
    indices = np.array([int(line) for line in lines], dtype=np.int64)
    if indices.max() >= population:
        raise DataError(f"{content.path}: index {indices.max()} but only {population} images")
    if len(np.unique(indices)) != len(indices):
        raise DataError(f"{content.path}: an index occurs twice")
    return indices


def _idx_array(content: Content, dimensions: int) -> NDArray[np.uint8]:
    """An IDX file: two zeros, element type, number of dimensions, big-endian sizes, elements."""
    data, path = content.data, content.path
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if data[:4] != magic:
        raise DataError(
            f"{path}: starts with {data[:4].hex(' ') or 'nothing'}, an IDX file of bytes in "
            f"{dimensions} dimensions with {magic.hex(' ')}"
        )
    if len(data) < header:
        raise DataError(f"{path}: ends within its header")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", count=dimensions, offset=4))
    wanted = header + math.prod(shape)
    if len(data) != wanted:
        state = "truncated" if len(data) < wanted else "trailing bytes"
        raise DataError(f"{path}: {state}, {len(data)} bytes where its header promises {wanted}")
    if 0 in shape:
        raise DataError(f"{path}: holds no elements")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _in_range(labels: NDArray[np.uint8], classes: int, content: Content) -> Labels:
    largest = int(labels.max())
    if largest >= classes:
        raise DataError(f"{content.path}: label {largest} lies outside 0..{classes - 1}")
    return labels.astype(np.int64)
