"""The three file formats (IDX arrays, CIFAR records, lists of indices), and data sets made of them.

Every reader takes unpacked contents and refuses anything that differs from the format, naming the
file and what is wrong with it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedsteer.data.dataset import Images, Labels
from fedsteer.data.files import Content
from fedsteer.errors import DataError

# Training images and labels, test images and labels.
Parts = tuple[Images, Labels, Images, Labels]

_UNSIGNED_BYTE = 0x08  # the only element type of IDX files in use for images and labels

_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + math.prod(_CIFAR_SHAPE)  # a label, then red, green and blue row by row


def idx_parts(contents: list[Content], classes: int) -> Parts:
    """Four IDX files: training images and labels, test images and labels."""
    train_images, train_labels, test_images, test_labels = contents
    return (
        *_idx_pair(train_images, train_labels, classes),
        *_idx_pair(test_images, test_labels, classes),
    )


def cifar_parts(contents: list[Content], classes: int) -> Parts:
    """Files of CIFAR-10's binary version, the last one for testing."""
    *train, test = (cifar_records(content, classes) for content in contents)
    images = np.concatenate([images for images, _ in train])
    labels = np.concatenate([labels for _, labels in train])
    return images, labels, *test


def emnist_selection(contents: list[Content], classes: int) -> Parts:
    """Index lists into ByMerge's test split, followed by a supplement for its rare classes.

    The images stay transposed, as in every official EMNIST file.
    """
    split_images, split_labels, more_images, more_labels, train_list, test_list = contents
    split = _idx_pair(split_images, split_labels, classes)
    more = _idx_pair(more_images, more_labels, classes)
    images = np.concatenate([split[0], more[0]])
    labels = np.concatenate([split[1], more[1]])
    train = index_list(train_list, len(labels))
    test = index_list(test_list, len(labels))
    if np.intersect1d(train, test).size:
        raise DataError(f"{test_list.path}: shares images with {train_list.path.name}")
    return images[train], labels[train], images[test], labels[test]


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


def _idx_pair(images: Content, labels: Content, classes: int) -> tuple[Images, Labels]:
    pair = idx_images(images), idx_labels(labels, classes)
    if len(pair[0]) != len(pair[1]):
        raise DataError(
            f"{labels.path}: {len(pair[1])} labels for the {len(pair[0])} images of "
            f"{images.path.name}"
        )
    return pair


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
        raise DataError(f"{content.path}: label {largest} is outside 0..{classes - 1}")
    return labels.astype(np.int64)
