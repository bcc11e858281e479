"""The data sets that need no files: scikit-learn's digits, and images made up on the spot."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsteer import draws
from fedsteer.data.dataset import Dataset, Images, Labels
from fedsteer.errors import ConfigurationError, check_name, extra
from fedsteer.options import check_number, check_options, option


def digits() -> Dataset:
    """1,797 handwritten digits of 8x8 with pixels 0..16; half of every class is for testing.

    The split belongs to the data set: it is the same in every run.
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
        *(images[~held_out], labels[~held_out]),
        *(images[held_out], labels[held_out]),
        classes=10,
        maximum=16,
        checksums={"digits": _fingerprint(images, labels)},
    )


MOST_PIXELS = 1 << 30


@dataclass(frozen=True)
class MadeOptions:
    """Images made up on the spot: a random prototype per class, plus pixel noise."""

    classes: int = option(4, "classes, as equal in size as `points` allows", low=2)
    side: int = option(8, "height and width of an image", low=1)
    points: int = option(400, "training points, and as many for testing", low=1)
    channels: int = option(1, "channels of an image", low=1)
    noise: float = option(0.2, "deviation of a pixel, in units of the full range", low=0)
    seed: int = option(0, "of prototypes and noise", low=0)

    def __post_init__(self) -> None:
        check_options(self, "made: data.options.")
        check_number("made: data.options.points", self.points, low=self.classes)
        if (pixels := self.points * self.channels * self.side**2) > MOST_PIXELS:
            raise ConfigurationError(f"made: {pixels:,} pixels are more than {MOST_PIXELS:,}")


def made(**settings: Any) -> Dataset:
    """The data set of these `MadeOptions`."""
    for name in settings:
        check_name("option of the made-up data", name, MadeOptions.__dataclass_fields__)
    options = MadeOptions(**settings)
    shape = options.channels, options.side, options.side
    prototypes = draws.generator(options.seed, "made prototypes").random((options.classes, *shape))

    def part(purpose: str) -> tuple[Images, Labels]:
        rng = draws.generator(options.seed, purpose)
        labels = rng.permutation(np.arange(options.points, dtype=np.int64) % options.classes)
        noise = options.noise * rng.standard_normal((options.points, *shape))
        pixels = prototypes[labels] + noise
        return np.rint(255 * pixels.clip(0, 1)).astype(np.uint8), labels

    parts = *part("made training"), *part("made test")
    fingerprint = _fingerprint(*parts)
    return Dataset("made", *parts, classes=options.classes, checksums={"made": fingerprint})


def _fingerprint(*arrays: Images | Labels) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
