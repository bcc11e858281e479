"""What the catalogue knows of one data set.

A checksum is that of the file's *content*, after unpacking: the same images are in circulation
with other gzip headers (Debian strips the time stamp) and in other packings. Only where the content
has no published checksum is that of the packed file used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """One file: its name without packing, how it may be packed, and what it must contain."""

    name: str
    checksum: str  # "algorithm:hexadecimal digest"
    packings: tuple[str, ...] = ("", ".gz")
    of_packed: bool = False  # the checksum is that of the packed file


@dataclass(frozen=True)
class Download:
    """One file to download; `members` are the files to take out when it is an archive."""

    url: str
    checksum: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """What the catalogue knows of a data set. Without `files`, nothing is read from disk."""

    name: str
    description: str
    classes: int
    files: tuple[File, ...] = ()
    subfolders: tuple[str, ...] = ()  # where else under a data folder the files may lie
    system_folder: str | None = None  # where a package of the operating system puts them
    downloads: tuple[Download, ...] = ()
    instead: str = ""  # what may serve where the files are not to be had
