"""The `.tar.xz` of packed runs: written reproducibly, read in memory within limits.

The archive holds the run folders as they are, so `tar xf` gives them back; `fedsteer.records.pack`
chooses what goes in. Names are sorted, times and owners are zero: the same records give the same
bytes. Reading writes nothing to disk and limits sizes, so a stranger's file is safe to open.
"""

import io
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path, PurePosixPath

from fedsteer.errors import DataError
from fedsteer.reading import reading
from fedsteer.records.files import write_atomically

ARCHIVE = "records.tar.xz"
MOST_BYTES = 1 << 30  # unpacked, all members together
FREE_BYTES, MOST_RATIO = 1 << 26, 250
"""What is larger than this is not larger than so many times the packed file: records shrink to a
fortieth, a bomb to a thousandth."""
MOST_MEMBERS = 100_000
LONGEST_HEADER = 1 << 16
PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
MEMORY = 1 << 27  # of the decompressor
CHUNK = 1 << 20
MAGIC = b"\xfd7zXZ\0"
# Tuned for text of digits: four bits of context from the previous byte, none from the position.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]


def write_archive(path: Path, members: Mapping[str, bytes]) -> None:
    """Write the members, files of the same kind side by side because they compress best."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(members, key=lambda name: (PurePosixPath(name).name, name)):
            entry = tarfile.TarInfo(name)  # mtime, uid and gid are 0
            entry.size, entry.mode = len(members[name]), 0o644
            tar.addfile(entry, io.BytesIO(members[name]))
    write_atomically(path, lzma.compress(raw.getvalue(), lzma.FORMAT_XZ, filters=FILTERS))


def read_archive(path: Path) -> dict[str, bytes]:
    """Every plain file of an archive: {path inside it: content}."""
    with reading(path, "an archive of records"):
        with path.open("rb") as file:  # a short file of another kind would seem cut short
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError("it does not begin as a .tar.xz of `fedsteer pack`")
        most = min(MOST_BYTES, max(FREE_BYTES, MOST_RATIO * path.stat().st_size))
        if any(size > most for size in accumulate(map(len, _unpacked(path)))):
            raise DataError(f"holds more than {most >> 20} MiB")
        return _members(b"".join(_unpacked(path)))


def _unpacked(path: Path) -> Iterator[bytes]:
    """The content in chunks, so that a bomb is found before it fills the memory."""
    unpack = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    with path.open("rb") as file:
        while not unpack.eof:
            packed = file.read(CHUNK) if unpack.needs_input else b""
            if unpack.needs_input and not packed:
                raise DataError("is cut short")
            yield unpack.decompress(packed, max_length=CHUNK)


class _Entry(tarfile.TarInfo):
    """A member whose extended headers are short: tarfile reads them whole, and slowly."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in PLAIN and self.size > LONGEST_HEADER:
            raise DataError(f"{self.name!r} has a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def _members(raw: bytes) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:", tarinfo=_Entry) as tar:
        for count, entry in enumerate(tar):
            if count >= MOST_MEMBERS:
                raise DataError(f"holds more than {MOST_MEMBERS} files")
            if entry.isdir():
                continue
            name = PurePosixPath(entry.name)
            # A link or a sparse file can claim any place or size; records are plain files.
            plain = entry.type in PLAIN and not entry.issparse()
            if not plain or name.is_absolute() or ".." in name.parts:
                raise DataError(f"{entry.name!r} is not a plain file below the archive")
            file = tar.extractfile(entry)
            found[str(name)] = b"" if file is None else file.read()
    return found
