"""From a name to a `Dataset`: the embedded ones at once, the others from verified files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedsteer.data.catalogue import entry_of
from fedsteer.data.dataset import Dataset, Images, Labels
from fedsteer.data.embedded import digits, made
from fedsteer.data.entry import Entry
from fedsteer.data.files import Content, find, missing, read_all, verify
from fedsteer.data.formats import cifar_records, idx_images, idx_labels, index_list
from fedsteer.errors import DataError

# Training images and labels, test images and labels.
Parts = tuple[Images, Labels, Images, Labels]


def load(name: str, *, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """The data set called `name` (see `NAMES`).

    Its files are searched in `folder` and, without one, in $FEDSTEER_DATA, the cache directory and
    the place of the operating system's package. They must be the published files: a damaged or
    different one is refused with a `DataError` that names it.

    >>> images, labels = load("digits").test()
    """
    entry = entry_of(name)
    if not entry.files:
        return load_from([], entry)
    refused: DataError | None = None
    for paths in find(entry, folder):
        try:
            return load_from(paths, entry)
        except DataError as error:  # of another data set, perhaps: some share names of files
            refused = refused or error
    raise refused or missing(entry, folder)


def load_from(paths: list[Path], entry: Entry) -> Dataset:
    """The data set in these files, if it is the published one."""
    if not entry.files:
        return digits() if entry.name == "digits" else made()
    contents = read_all(paths)
    # Reading comes before verifying: "truncated" helps a user more than an unequal checksum.
    parts = _READERS[entry.name](contents, entry)
    for file, content in zip(entry.files, contents, strict=True):
        verify(file, content)
    checksums = {
        file.name: content.sha256 for file, content in zip(entry.files, contents, strict=True)
    }
    return Dataset(entry.name, *parts, classes=entry.classes, checksums=checksums)


def _four_idx_files(contents: list[Content], entry: Entry) -> Parts:
    train_images, train_labels, test_images, test_labels = contents
    return (
        *_idx_pair(train_images, train_labels, entry),
        *_idx_pair(test_images, test_labels, entry),
    )


def _cifar_batches(contents: list[Content], entry: Entry) -> Parts:
    *train, test = (cifar_records(content, entry.classes) for content in contents)
    images = np.concatenate([images for images, _ in train])
    labels = np.concatenate([labels for _, labels in train])
    return images, labels, *test


def _emnist_selection(contents: list[Content], entry: Entry) -> Parts:
    """Index lists into [ByMerge test split, then a supplement for its rare classes].

    The images stay transposed, as in every official EMNIST file.
    """
    split_images, split_labels, more_images, more_labels, train_list, test_list = contents
    split = _idx_pair(split_images, split_labels, entry)
    more = _idx_pair(more_images, more_labels, entry)
    images = np.concatenate([split[0], more[0]])
    labels = np.concatenate([split[1], more[1]])
    train = index_list(train_list, len(labels))
    test = index_list(test_list, len(labels))
    if np.intersect1d(train, test).size:
        raise DataError(f"{test_list.path}: shares images with {train_list.path.name}")
    return images[train], labels[train], images[test], labels[test]


def _idx_pair(images: Content, labels: Content, entry: Entry) -> tuple[Images, Labels]:
    pair = idx_images(images), idx_labels(labels, entry.classes)
    if len(pair[0]) != len(pair[1]):
        raise DataError(
            f"{labels.path}: {len(pair[1])} labels for the {len(pair[0])} images of "
            f"{images.path.name}"
        )
    return pair


_READERS: dict[str, Callable[[list[Content], Entry], Parts]] = {
    "fashion-mnist": _four_idx_files,
    "mnist": _four_idx_files,
    "emnist-balanced": _four_idx_files,
    "emnist-bymerge": _emnist_selection,
    "cifar-10": _cifar_batches,
}
