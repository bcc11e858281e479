"""Download a data set from its official place into the cache directory."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from fedsteer.data.catalogue import Source, source_of
from fedsteer.data.loading import cache_folder, check
from fedsteer.errors import ConfigurationError, DataError, extra


def fetch(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    downloader: Callable[[str, Any, Any], None] | None = None,
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
    if found.ok and found.folder is not None:
        return found.folder
    target = cache_folder(name) if folder is None else Path(folder)
    if folder is None:
        _remove_damaged(source, target)  # it would be found before the new one
    try:
        import pooch
    except ImportError as error:
        raise ConfigurationError(f"downloads need pooch: {extra('sim')}") from error
    try:
        for download in source.downloads:
            file = PurePosixPath(download.url).name
            path = Path(
                pooch.retrieve(
                    download.url, download.checksum, fname=file, path=target, downloader=downloader
                )
            )
            if download.members:
                _unpack(path, download.members, target)
                path.unlink()
    # pooch raises a ValueError for an unequal checksum; network errors are OSErrors.
    except (OSError, ValueError, KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{name} could not be downloaded: {reason}") from error
    report = check(name, folder=target)
    if not report.ok:
        raise DataError(report.problem)
    return target


def _remove_damaged(source: Source, target: Path) -> None:
    for file in source.files:
        for path in file.found_in(target):
            try:
                file.read(path)
            except DataError:
                path.unlink()


def _unpack(archive: Path, members: Sequence[str], target: Path) -> None:
    """Write the members side by side, without the archive's folders."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed_zip:
            for member in members:
                (target / PurePosixPath(member).name).write_bytes(packed_zip.read(member))
    else:
        with tarfile.open(archive) as packed_tar:
            for member in members:
                stream = packed_tar.extractfile(member)
                if stream is None:
                    raise DataError(f"{archive}: {member} is not a file")
                (target / PurePosixPath(member).name).write_bytes(stream.read())
