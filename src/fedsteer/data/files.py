"""The files of a data set: find them, unpack them, make sure they are the right ones."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsteer.errors import DataError

# No file of the catalogue unpacks to more than 184 MB. A file beyond this limit is not one of them
# and would fill the memory before its checksum could refuse it.
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

    def read(self, path: Path) -> bytes:
        """The content of this file at `path`, unpacked; refused unless it is the published one.

        MNIST and Fashion-MNIST have the same file names, shapes and number of classes.
        """
        try:
            with OPENERS.get(path.suffix, open)(path, "rb") as stream:
                content: bytes = stream.read(LARGEST_CONTENT + 1)
            hashed = path.read_bytes() if self.of_packed else content
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise DataError(f"{path}: damaged {path.suffix[1:]} file ({error})") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
        if len(content) > LARGEST_CONTENT:
            raise DataError(f"{path}: unpacks to more than {LARGEST_CONTENT} bytes")
        algorithm, _, published = self.checksum.partition(":")
        found = hashlib.new(algorithm, hashed).hexdigest()
        if found != published:
            raise DataError(
                f"{path}: not the published file but {len(content):,} bytes with "
                f"{algorithm} {found} instead of {published}"
            )
        return content

    def sha256(self, content: bytes) -> str:
        """Of the content; `read` has computed it already if it is the published checksum."""
        algorithm, _, published = self.checksum.partition(":")
        known = algorithm == "sha256" and not self.of_packed
        return published if known else hashlib.sha256(content).hexdigest()
