from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsteer.data.files import Content, read
from fedsteer.data.formats import cifar_records, idx_images, idx_labels, index_list
from fedsteer.errors import DataError

from .made_files import cifar_bytes, idx_bytes, images_and_labels, packed


def content(data: bytes) -> Content:
    return Content(Path("made-file"), data, hashlib.sha256(data).hexdigest())


IMAGES, LABELS = images_and_labels(7, classes=3, seed=0)
IDX_IMAGES, IDX_LABELS = idx_bytes(IMAGES), idx_bytes(LABELS)


def test_idx_round_trip() -> None:
    images = idx_images(content(IDX_IMAGES))
    labels = idx_labels(content(IDX_LABELS), classes=3)
    np.testing.assert_array_equal(images[:, 0], IMAGES)
    np.testing.assert_array_equal(labels, LABELS)
    assert images.dtype == np.uint8 and labels.dtype == np.int64


def test_cifar_is_channels_first_with_the_label_in_front() -> None:
    record = bytes([7]) + bytes([10]) * 1024 + bytes([20]) * 1024 + bytes([30]) * 1024
    images, labels = cifar_records(content(record), classes=10)
    assert labels.tolist() == [7]
    assert images.shape == (1, 3, 32, 32)
    assert [np.unique(channel).tolist() for channel in images[0]] == [[10], [20], [30]]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "starts with nothing"),
        (b"\x00\x00", "starts with 00 00"),
        (IDX_LABELS, "3 dimensions"),
        (b"\x00\x00\x0d\x03" + IDX_IMAGES[4:], "starts with 00 00 0d 03"),
        (IDX_IMAGES[:9], "within its header"),
        (IDX_IMAGES[:-1], "truncated"),
        (IDX_IMAGES + b"x", "trailing bytes"),
        (idx_bytes(IMAGES[:0]), "no elements"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12, "truncated"),
    ],
)
def test_idx_images_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(DataError, match=f"^made-file: .*{complaint}"):
        idx_images(content(data))


def test_labels_out_of_range_refused() -> None:
    with pytest.raises(DataError, match=r"made-file: label 2 is outside 0\.\.1"):
        idx_labels(content(IDX_LABELS), classes=2)
    with pytest.raises(DataError, match="made-file: label"):
        cifar_records(content(b"\x0a" + bytes(3072)), classes=10)


@pytest.mark.parametrize("data", [b"", bytes(3072), bytes(3074)])
def test_cifar_of_wrong_length_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="records"):
        cifar_records(content(data), classes=10)


def test_index_list() -> None:
    assert index_list(content(b"4\n0\n2"), population=5).tolist() == [4, 0, 2]


@pytest.mark.parametrize(
    "data", [b"", b"1\n-1\n", b"1.5\n", b"one\n", b"5\n", b"1\n1\n", b"9" * 30, b"\xff\n", b"1_0\n"]
)
def test_index_list_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="made-file"):
        index_list(content(data), population=5)


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    packing=st.sampled_from(["", ".gz", ".xz"]),
    kind=st.sampled_from(["images", "labels", "cifar"]),
)
def test_damage_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, packing: str, kind: str
) -> None:
    """Cut or flipped anywhere, a file loads or is refused in one line; nothing else escapes."""
    original = {"images": IDX_IMAGES, "labels": IDX_LABELS, "cifar": cifar_bytes(1, 0)}[kind]
    damaged = bytearray(packed(original, packing))
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    path = tmp_path_factory.mktemp("damaged") / f"file{packing}"
    path.write_bytes(damaged)
    complaint = ""
    try:
        found = read(path)
        if kind == "images":
            assert idx_images(found).ndim == 4
        elif kind == "labels":
            assert idx_labels(found, classes=3).max() < 3
        else:
            assert cifar_records(found, classes=10)[0].ndim == 4
    except DataError as error:
        complaint = str(error)
    assert not complaint or (complaint.startswith(str(path)) and "\n" not in complaint)
