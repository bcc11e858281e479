"""From a name to a `Dataset`: find or download its files, verify and read them."""

import hashlib
import os
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import urlsplit

from fedsteer.data.catalogue import Source, source_of
from fedsteer.data.dataset import Dataset
from fedsteer.data.embedded import made
from fedsteer.data.files import File
from fedsteer.errors import ConfigurationError, DataError, extra
from fedsteer.reading import reading

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True)
class CheckReport:
    """What `check` found."""

    state: Literal["ok", "missing", "damaged"]
    problem: str = ""  # one line, empty if the state is ok
    folder: Path | None = None  # of its files
    dataset: Dataset | None = None  # if the state is ok


def load(name: str, *, folder: Folder = None, options: Mapping[str, Any] | None = None) -> Dataset:
    """The data set called `name` (see `CATALOGUE`); `options` are those of the made-up one.

    Files are searched in `folder` or, if it is not given, in $FEDSTEER_DATA, the cache directory
    and the place of the operating system's package. Only the published files are accepted: a
    damaged or different one raises a `DataError` that names it.

    >>> images, labels = load("digits").test()
    """
    source = source_of(name)
    if options and source.make is not made:
        raise ConfigurationError("data.options are for the made-up data set only")
    if source.make is not None:
        return source.make(**options or {})
    found = check(name, folder=folder)
    if found.dataset is None:
        raise DataError(found.problem)
    return found.dataset


def check(name: str, *, folder: Folder = None) -> CheckReport:
    """Look for a data set, read all of it and compare it with the published checksums.

    Problems are reported, not raised; only an unknown name is an error.
    """
    source = source_of(name)
    if source.make is not None:
        try:
            return CheckReport("ok", dataset=source.make())
        except ConfigurationError as error:  # a package is missing
            return CheckReport("missing", problem=str(error))
    refused: DataError | None = None
    for place in searched_folders(source, folder):
        paths = [file.found_in(place) for file in source.files]
        try:
            if all(paths):
                dataset = _read(paths, source)
                return CheckReport("ok", folder=place, dataset=dataset)
        except DataError as error:  # perhaps of another data set: some share file names
            refused = refused or error
    if refused is not None:
        return CheckReport("damaged", problem=str(refused))
    return CheckReport("missing", problem=_where_to_get(source, folder))


def fetch(
    name: str, *, folder: Folder = None, downloader: Callable[[str, Any, Any], None] | None = None
) -> Path:
    """Download a data set unless it is there and intact; its folder.

    Every download is compared with its published checksum before it is used. `downloader` is
    passed to pooch, for a proxy, a mirror or a progress bar.
    """
    source = source_of(name)
    if not source.downloads:
        reason = "it needs no files" if not source.files else "its files are not published anywhere"
        more = f"; you can download {source.instead} instead" if source.instead else ""
        raise ConfigurationError(f"{name} cannot be downloaded: {reason}{more}")
    found = check(name, folder=folder)
    if found.folder is not None:
        return found.folder
    target = cache_folder(name) if folder is None else Path(folder)
    try:
        import pooch
    except ImportError as error:
        raise ConfigurationError(f"downloads need pooch: {extra('sim')}") from error
    try:
        for download in source.downloads:
            file = PurePosixPath(download.url).name
            path = pooch.retrieve(download.url, download.checksum, file, target, None, downloader)
            if download.members:
                _unpack(Path(path), download.members, target)
    # pooch raises a ValueError for an unequal checksum; network errors are OSErrors.
    except (OSError, ValueError, KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, OSError) and len(reason) > 200:  # urllib3 tells all of its attempts
            reason = f"no connection to {urlsplit(download.url).hostname} ({type(error).__name__})"
        raise DataError(f"{name} could not be downloaded: {reason}") from error
    load(name, folder=target)
    return target


def _read(paths: list[list[Path]], source: Source) -> Dataset:
    with ThreadPoolExecutor() as pool:  # unpacking xz is slow and releases Python's lock
        contents = list(pool.map(File.read_first, source.files, paths))
    assert source.reader is not None
    with reading(paths[0][0].parent, f"the images of {source.name}"):
        parts = source.reader(contents)
    return Dataset(
        source.name,
        *parts,
        classes=source.classes,
        checksums={
            file.name: hashlib.sha256(content).hexdigest()
            for file, content in zip(source.files, contents, strict=True)
        },
    )


def cache_folder(name: str) -> Path:
    """Where `fetch` puts a data set: under $XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "fedsteer" / name


def searched_folders(source: Source, folder: Folder = None) -> list[Path]:
    """Where the files may be, best first. If `folder` is given, it is the only one searched."""
    root = folder if folder is not None else os.environ.get("FEDSTEER_DATA")
    below = (source.name, *source.subfolders, "")  # data sets share file names
    folders = [Path(root) / sub for sub in below] if root else []
    if folder is None:
        folders.append(cache_folder(source.name))
        if source.system_folder:
            folders.append(Path(source.system_folder))
    return folders


def _where_to_get(source: Source, folder: Folder) -> str:
    """What to tell someone who lacks the files; it names the folders searched."""
    places = ", ".join(str(place) for place in searched_folders(source, folder))
    remedy = "it cannot be downloaded; put its files into one of these"
    if source.downloads:
        remedy = f"`fedsteer data fetch {source.name}` downloads it"
    if source.instead:
        remedy += (
            f"; or use {source.instead}, which can be downloaded: --set data.name={source.instead}"
        )
    return f"{source.name} not found in {places}; {remedy}"


def _unpack(archive: Path, members: Sequence[str], target: Path) -> None:
    """Replace the archive by its members, side by side, without its folders."""
    zipped = zipfile.is_zipfile(archive)
    opened: Any = zipfile.ZipFile if zipped else tarfile.open
    with opened(archive) as packed:
        stream = packed.open if zipped else packed.extractfile
        for member in members:
            (target / PurePosixPath(member).name).write_bytes(stream(member).read())
    archive.unlink()
