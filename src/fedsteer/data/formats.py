"""Readers of the three file formats: IDX arrays, CIFAR records, lists of indices.

Contents are unpacked and have the published checksums, so the readers trust them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsteer.data.dataset import Images, Labels

# Training images and labels, test images and labels.
Parts = tuple[Images, Labels, Images, Labels]

CIFAR_RECORD = np.dtype([("label", np.uint8), ("image", np.uint8, (3, 32, 32))])


def idx_parts(contents: Sequence[bytes]) -> Parts:
    """Four IDX files: training images and labels, test images and labels."""
    train_images, train_labels, test_images, test_labels = contents
    return *_idx_pair(train_images, train_labels), *_idx_pair(test_images, test_labels)


def cifar_parts(contents: Sequence[bytes]) -> Parts:
    """Files of CIFAR-10's binary version, the last one for testing."""
    *train, test = (np.frombuffer(content, CIFAR_RECORD) for content in contents)
    return *_cifar_pair(np.concatenate(train)), *_cifar_pair(test)


def emnist_selection(contents: Sequence[bytes]) -> Parts:
    """Index lists into ByMerge's test split, followed by a supplement for its rare classes.

    The images stay transposed, as in every official EMNIST file.
    """
    split_images, split_labels, more_images, more_labels, *lists = contents
    split, more = _idx_pair(split_images, split_labels), _idx_pair(more_images, more_labels)
    images = np.concatenate([split[0], more[0]])
    labels = np.concatenate([split[1], more[1]])
    train, test = (np.array(numbers.split(), dtype=np.int64) for numbers in lists)
    return images[train], labels[train], images[test], labels[test]


def _idx_pair(images: bytes, labels: bytes) -> tuple[Images, Labels]:
    """Gray images, as (n, 1, height, width), and their labels."""
    return _idx_array(images)[:, np.newaxis], _idx_array(labels).astype(np.int64)


def _idx_array(content: bytes) -> NDArray[np.uint8]:
    """An IDX file: two zeros, element type, number of dimensions, big-endian sizes, elements."""
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", count=dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _cifar_pair(records: NDArray[np.void]) -> tuple[Images, Labels]:
    return np.ascontiguousarray(records["image"]), records["label"].astype(np.int64)
