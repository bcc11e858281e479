from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsteer.data.files import File, cifar_parts, emnist_selection, idx_parts
from fedsteer.errors import DataError

from .made_files import idx_bytes, images_and_labels, packed

TRAIN, TEST = images_and_labels(7, classes=3, seed=0), images_and_labels(4, classes=3, seed=1)
FILES = [idx_bytes(array) for array in (*TRAIN, *TEST)]


def test_idx_round_trip() -> None:
    train_images, train_labels, test_images, test_labels = idx_parts(FILES)
    np.testing.assert_array_equal(train_images[:, 0], TRAIN[0])
    np.testing.assert_array_equal(train_labels, TRAIN[1])
    np.testing.assert_array_equal(test_images[:, 0], TEST[0])
    np.testing.assert_array_equal(test_labels, TEST[1])
    assert train_images.dtype == np.uint8 and train_labels.dtype == np.int64


def test_cifar_is_channels_first_with_the_label_in_front() -> None:
    record = bytes([7]) + bytes([10]) * 1024 + bytes([20]) * 1024 + bytes([30]) * 1024
    images, labels, test_images, test_labels = cifar_parts([record, record, bytes(3073)])
    assert labels.tolist() == [7, 7] and test_labels.tolist() == [0]
    assert images.shape == (2, 3, 32, 32) and test_images.shape == (1, 3, 32, 32)
    assert [np.unique(channel).tolist() for channel in images[1]] == [[10], [20], [30]]


def test_index_lists_select() -> None:
    images, labels, test_images, test_labels = emnist_selection([*FILES, b"4\n0\n10", b"8\n"])
    assert labels.tolist() == [1, 0, 0] and test_labels.tolist() == [1]
    np.testing.assert_array_equal(images[2, 0], TEST[0][3])
    np.testing.assert_array_equal(test_images[0, 0], TEST[0][1])


@settings(max_examples=150, deadline=None)
@given(data=st.data(), packing=st.sampled_from(["", ".gz", ".xz"]), of_packed=st.booleans())
def test_damage_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, packing: str, of_packed: bool
) -> None:
    """Cut or flipped anywhere, a file keeps its content or is refused in one line."""
    whole = packed(FILES[0], packing)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    path = tmp_path_factory.mktemp("damaged") / f"file{packing}"
    path.write_bytes(damaged)
    digest = hashlib.sha256(whole if of_packed else FILES[0]).hexdigest()
    file = File("file", len(FILES[0]), f"sha256:{digest}", of_packed=of_packed)
    complaint = ""
    try:
        assert file.read(path) == FILES[0]
    except DataError as error:
        complaint = str(error)
    assert not complaint or (complaint.startswith(str(path)) and "\n" not in complaint)
    assert complaint or damaged == whole or not of_packed
