"""The `.tar.xz` of packed runs: written reproducibly, read in memory within limits.

The archive holds the run folders as they are, so `tar xf` gives them back; `fedsteer.records.pack`
chooses what goes in. Names are sorted, times and owners are zero: the same records give the same
bytes. Reading writes nothing to disk and limits sizes, so a stranger's file is safe to open.
"""

import io
import lzma
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from fedsteer.errors import DataError
from fedsteer.records.files import write_atomically

ARCHIVE = "records.tar.xz"
MOST_BYTES = 1 << 30  # unpacked, all members together
MOST_MEMBERS = 100_000
MEMORY = 1 << 28  # of the decompressor
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
    packed = path.read_bytes()
    if not packed.startswith(MAGIC):  # else a short file of another kind would seem cut short
        raise DataError(f"{path} is not an archive of records (a .tar.xz of `fedsteer pack`)")
    try:
        unpack = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
        raw = unpack.decompress(packed, max_length=MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise DataError(f"{path} holds more than {MOST_BYTES >> 20} MiB")
        if not unpack.eof:
            raise DataError(f"{path} is cut short")
        return _members(path, raw)
    except (lzma.LZMAError, tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(f"{path} is not an archive of records: {error}") from None


def _members(path: Path, raw: bytes) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
        for count, entry in enumerate(tar):
            if count >= MOST_MEMBERS:
                raise DataError(f"{path} holds more than {MOST_MEMBERS} files")
            if entry.isdir():
                continue
            name = PurePosixPath(entry.name)
            # A link or a sparse file can claim any place or size; records are plain files.
            plain = entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse()
            if not plain or name.is_absolute() or ".." in name.parts:
                raise DataError(f"{path}: {entry.name!r} is not a plain file below the archive")
            file = tar.extractfile(entry)
            found[str(name)] = b"" if file is None else file.read()
    return found
