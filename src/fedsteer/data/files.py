"""Finding the files of a data set, unpacking them, and making sure they are the right ones."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fedsteer.data.entry import Entry, File
from fedsteer.errors import DataError

# No file of the catalogue unpacks to more than 184 MB: what goes beyond this is no data set, and
# would fill the memory before any reader could refuse it.
LARGEST_CONTENT = 1 << 30


@dataclass(frozen=True)
class Content:
    """A file's bytes after unpacking. `sha256` is theirs, not that of the packed file."""

    path: Path
    data: bytes
    sha256: str


def cache_folder(name: str) -> Path:
    """Where `fetch` puts a data set: under $XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "fedsteer" / name


def searched_folders(entry: Entry, folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """Where the files may lie, in order of preference. A folder given is the only one searched."""
    root = folder if folder is not None else os.environ.get("FEDSTEER_DATA")
    below = (entry.name, *entry.subfolders, "")  # data sets share names of files
    folders = [Path(root) / sub for sub in below] if root else []
    if folder is None:
        folders.append(cache_folder(entry.name))
        if entry.system_folder:
            folders.append(Path(entry.system_folder))
    return folders


def find(entry: Entry, folder: str | os.PathLike[str] | None = None) -> Iterator[list[Path]]:
    """The files of a data set in the catalogue's order, from each folder that has them all."""
    for candidate in searched_folders(entry, folder):
        paths = [_packed_in_some_way(candidate, file) for file in entry.files]
        complete = [path for path in paths if path is not None]
        if len(complete) == len(entry.files):
            yield complete


def missing(entry: Entry, folder: str | os.PathLike[str] | None = None) -> DataError:
    """The error for a data set that is nowhere, with where it was looked for."""
    places = ", ".join(str(place) for place in searched_folders(entry, folder))
    remedy = (
        f"`fedsteer data fetch {entry.name}` downloads it"
        if entry.downloads
        else "it cannot be downloaded, put its files into one of these"
    )
    if entry.instead:
        remedy += f"; or take {entry.instead}, which can: --set data.name={entry.instead}"
    return DataError(f"{entry.name} not found in {places}; {remedy}")


def read_all(paths: list[Path]) -> list[Content]:
    """Read and unpack several files at once: unpacking xz is slow and leaves Python's lock."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(read, paths))


def read(path: Path) -> Content:
    """The content of a file that may be packed by gzip or xz, as its name says."""
    try:
        with _open(path) as stream:
            data = stream.read(LARGEST_CONTENT + 1)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged {path.suffix[1:]} file ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(data) > LARGEST_CONTENT:
        raise DataError(f"{path}: unpacks to more than {LARGEST_CONTENT} bytes")
    return Content(path, data, hashlib.sha256(data).hexdigest())


def verify(file: File, content: Content) -> None:
    """Refuse a file that reads well but is not the published one.

    MNIST and Fashion-MNIST, for one, have the same file names, shapes and number of classes.
    """
    algorithm, _, published = file.checksum.partition(":")
    if file.of_packed:
        found = hashlib.new(algorithm, content.path.read_bytes()).hexdigest()
    elif algorithm == "sha256":
        found = content.sha256
    else:
        found = hashlib.new(algorithm, content.data).hexdigest()
    if found != published:
        raise DataError(
            f"{content.path}: not the published file ({algorithm} {found} instead of {published})"
        )


def _open(path: Path) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    if path.suffix == ".gz":
        return gzip.GzipFile(path)
    if path.suffix == ".xz":
        return lzma.LZMAFile(path)
    return path.open("rb")


def _packed_in_some_way(folder: Path, file: File) -> Path | None:
    candidates = (folder / (file.name + packing) for packing in file.packings)
    return next((path for path in candidates if path.is_file()), None)
