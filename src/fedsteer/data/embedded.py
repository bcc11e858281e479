"""The data sets that need no files: scikit-learn's digits, and images made up on the spot."""

from __future__ import annotations

import hashlib

import numpy as np

from fedsteer import draws
from fedsteer.data.dataset import Dataset, Images, Labels
from fedsteer.errors import ConfigurationError, extra


def digits() -> Dataset:
    """1,797 handwritten digits of 8x8 with pixels 0..16; half of every class is held out.

    The split is the same in every run: it belongs to the data set, not to the experiment.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigurationError(f"the digits come with scikit-learn: {extra('sim')}") from error
    bunch = load_digits()
    images: Images = bunch.images.astype(np.uint8)[:, np.newaxis]
    labels: Labels = bunch.target.astype(np.int64)

    rng = draws.generator(0, "digits held out")
    held_out = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        members = rng.permutation(np.flatnonzero(labels == label))
        held_out[members[: len(members) // 2]] = True
    return Dataset(
        "digits",
        images[~held_out],
        labels[~held_out],
        images[held_out],
        labels[held_out],
        classes=10,
        maximum=16,
        checksums={"digits": _fingerprint(images, labels)},
    )


MOST_PIXELS = 1 << 30


def made(
    *,
    classes: int = 4,
    side: int = 8,
    points: int = 400,
    channels: int = 1,
    noise: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """`points` training and as many test images: a random prototype per class, plus pixel noise.

    `noise` is the deviation of a pixel in units of the full range. The classes are as equal in
    size as `points` allows.
    """
    for option, value, least in (
        ("classes", classes, 2),
        ("side", side, 1),
        ("points", points, classes),
        ("channels", channels, 1),
        ("seed", seed, 0),
    ):
        if value < least:
            raise ConfigurationError(f"made: {option} must be at least {least}, got {value}")
    if (pixels := max(points, classes) * channels * side**2) > MOST_PIXELS:
        raise ConfigurationError(f"made: {pixels:,} pixels are more than {MOST_PIXELS:,}")
    if not 0 <= noise < float("inf"):
        raise ConfigurationError(f"made: noise must be 0 or more, got {noise}")

    prototypes = draws.generator(seed, "made prototypes").random((classes, channels, side, side))

    def part(purpose: str) -> tuple[Images, Labels]:
        rng = draws.generator(seed, purpose)
        labels = rng.permutation(np.arange(points, dtype=np.int64) % classes)
        pixels = prototypes[labels] + noise * rng.standard_normal((points, *prototypes.shape[1:]))
        return np.rint(255 * pixels.clip(0, 1)).astype(np.uint8), labels

    train_images, train_labels = part("made training")
    test_images, test_labels = part("made test")
    return Dataset(
        "made",
        train_images,
        train_labels,
        test_images,
        test_labels,
        classes=classes,
        checksums={"made": _fingerprint(train_images, train_labels, test_images, test_labels)},
    )


def _fingerprint(*arrays: Images | Labels) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
