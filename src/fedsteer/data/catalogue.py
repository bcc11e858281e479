"""Every data set by name; `catalogue.toml` holds the files, their checksums and where they are."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsteer.data.dataset import Dataset
from fedsteer.data.embedded import digits, made
from fedsteer.data.files import File, Parts, cifar_parts, emnist_selection, idx_parts
from fedsteer.errors import check_name

READERS = {"idx": idx_parts, "cifar": cifar_parts, "emnist-selection": emnist_selection}
MAKERS: dict[str, Callable[..., Dataset]] = {"digits": digits, "made": made}


@dataclass(frozen=True)
class Download:
    """One file to download; `members` are the files to take out if it is an archive."""

    url: str
    checksum: str
    members: Sequence[str] = ()


@dataclass(frozen=True)
class Source:
    """A data set: either `files` and the `reader` of their contents, or `make` makes it here."""

    name: str
    description: str
    classes: int
    make: Callable[..., Dataset] | None = None
    files: tuple[File, ...] = ()
    reader: Callable[[Sequence[bytes]], Parts] | None = None  # of their contents
    subfolders: Sequence[str] = ()  # where else under a data folder the files may be
    system_folder: str | None = None  # where a package of the operating system puts them
    downloads: tuple[Download, ...] = ()
    instead: str = ""  # a data set to use if these files cannot be had


def _read_source(name: str, table: dict[str, Any]) -> Source:
    packing = {key: table.pop(key) for key in ("packings", "of_packed") if key in table}
    published = table.pop("files", {})
    return Source(
        name=name,
        make=MAKERS.get(name),
        files=tuple(File(name=file, **entry, **packing) for file, entry in published.items()),
        reader=READERS.get(table.pop("reader", "")),
        downloads=tuple(Download(**entry) for entry in table.pop("downloads", [])),
        **table,
    )


CATALOGUE: dict[str, Source] = {
    name: _read_source(name, table)
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}


def source_of(name: str) -> Source:
    """The data set called `name`, or an error that suggests the nearest name."""
    check_name("data set", name, CATALOGUE)
    return CATALOGUE[name]
