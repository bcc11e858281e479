"""The files of a data set: find them, unpack them, make sure they are the right ones."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsteer.errors import DataError

# No file of the catalogue unpacks to more than 184 MB. A file beyond this limit is not one of them
# and would fill the memory before any reader could refuse it.
LARGEST_CONTENT = 1 << 30

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


@dataclass(frozen=True)
class File:
    """One file: its name without packing, how it may be packed, and what it must contain."""

    name: str
    checksum: str  # "algorithm:hexadecimal digest"
    packings: Sequence[str] = ("", ".gz")
    of_packed: bool = False  # the checksum is that of the packed file

    def found_in(self, folder: Path) -> list[Path]:
        """The file in a folder, in every packing it has there."""
        paths = (folder / (self.name + packing) for packing in self.packings)
        return [path for path in paths if path.is_file()]


@dataclass(frozen=True)
class Content:
    """A file's bytes after unpacking. `sha256` is theirs, not that of the packed file."""

    path: Path
    data: bytes
    sha256: str


def read_all(paths: list[Path]) -> list[Content]:
    """Read and unpack several files at once: unpacking xz is slow and releases Python's lock."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(read, paths))


def read(path: Path) -> Content:
    """The content of a file, unpacked if its name ends in .gz or .xz."""
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as stream:
            data = stream.read(LARGEST_CONTENT + 1)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged {path.suffix[1:]} file ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(data) > LARGEST_CONTENT:
        raise DataError(f"{path}: unpacks to more than {LARGEST_CONTENT} bytes")
    return Content(path=path, data=data, sha256=hashlib.sha256(data).hexdigest())


def verify(file: File, content: Content) -> None:
    """Refuse a file that can be read but is not the published one.

    MNIST and Fashion-MNIST have the same file names, shapes and number of classes.
    """
    algorithm, _, published = file.checksum.partition(":")
    data = content.path.read_bytes() if file.of_packed else content.data
    found = hashlib.new(algorithm, data).hexdigest()
    if found != published:
        raise DataError(
            f"{content.path}: not the published file ({algorithm} {found} instead of {published})"
        )
