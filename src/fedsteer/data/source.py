"""What the catalogue knows of one data set.

A checksum is that of the file's content after unpacking: the same images circulate with other gzip
headers (Debian strips the time stamp) and in other packings. The packed file's checksum is used
only if no other is published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedsteer.data.dataset import Dataset, Images, Labels
from fedsteer.data.files import Content, File

# Training images and labels, test images and labels.
Parts = tuple[Images, Labels, Images, Labels]


@dataclass(frozen=True)
class Download:
    """One file to download; `members` are the files to take out if it is an archive."""

    url: str
    checksum: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A data set: either `files` and the `reader` of their contents, or `make` makes it here."""

    name: str
    description: str
    classes: int
    make: Callable[..., Dataset] | None = None
    options: type[Any] | None = None  # of `make`: a dataclass
    files: tuple[File, ...] = ()
    reader: Callable[[list[Content], int], Parts] | None = None  # (contents, classes)
    subfolders: tuple[str, ...] = ()  # where else under a data folder the files may be
    system_folder: str | None = None  # where a package of the operating system puts them
    downloads: tuple[Download, ...] = ()
    instead: str = ""  # a data set to use if these files cannot be had
