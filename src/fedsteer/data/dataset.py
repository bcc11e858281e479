"""A labelled set of images, cut into training and test points."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as the files store them.

    `train` and `test` return fresh float32 copies with pixel / maximum in [0, 1].
    """

    name: str
    train_images: Images  # (n, channels, height, width)
    train_labels: Labels  # (n,), each in 0 .. classes - 1
    test_images: Images
    test_labels: Labels
    classes: int
    maximum: int = 255  # the pixel value that becomes 1.0
    checksums: Mapping[str, str] = field(default_factory=dict)  # file -> SHA-256 of its content

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of every image."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width

    def train(self) -> tuple[NDArray[np.float32], Labels]:
        return self._scaled(self.train_images), self.train_labels.copy()

    def test(self) -> tuple[NDArray[np.float32], Labels]:
        return self._scaled(self.test_images), self.test_labels.copy()

    def _scaled(self, images: Images) -> NDArray[np.float32]:
        return images.astype(np.float32) / np.float32(self.maximum)
