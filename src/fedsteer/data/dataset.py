"""A labelled set of images, cut into training and test points."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsteer.errors import DataError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as the files store them; `train` and `test` return them ready for training.

    `train` and `test` return fresh float32 copies with pixel / maximum in [0, 1], without further
    normalisation.
    """

    name: str
    train_images: Images  # (n, channels, height, width)
    train_labels: Labels  # (n,), each in 0 .. classes - 1
    test_images: Images
    test_labels: Labels
    classes: int
    maximum: int = 255  # the pixel value that becomes 1.0
    checksums: Mapping[str, str] = field(default_factory=dict)  # file -> SHA-256 of its content

    def __post_init__(self) -> None:
        for part, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            where = f"{self.name}: {part} part"
            if images.ndim != 4 or images.dtype != np.uint8:
                raise DataError(f"{where}: images must be bytes (n, channels, height, width)")
            if labels.shape != images.shape[:1] or labels.dtype != np.int64:
                raise DataError(f"{where}: labels must be one int64 per image")
            if images.size == 0:
                raise DataError(f"{where} is empty")
            if labels.min() < 0 or labels.max() >= self.classes:
                raise DataError(f"{where}: a label is outside 0..{self.classes - 1}")
            if images.max() > self.maximum:
                raise DataError(f"{where}: a pixel is above {self.maximum}")
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise DataError(f"{self.name}: training and test images differ in shape")

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
