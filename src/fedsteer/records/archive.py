"""Many runs in one small file, for a repository: `records.tar.xz`.

The archive holds the run folders as they are, so `tar xf` gives them back and `find_runs` reads it
without unpacking. What is left out or shortened changes no table and no curve of accuracies: these
come from `result.json` and from keys of `rounds.jsonl` that are kept digit for digit.

    manifest.json, result.json, failure.json    every run, every digit
    rounds.jsonl                                every run; see `EXACT`, `LEFT_OUT` and `DIGITS`
    clients.jsonl                               the same; by default the first seed of each rule
    arrays.safetensors                          as it is; by default the first seed of each rule
    timing.jsonl, checkpoints                   never
    sheet.json                                  once: which table of the paper this is

The same records give the same bytes: names are sorted, times and owners are zero. Members are
read in memory and never written to disk; sizes are limited, so a stranger's file can be opened.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from fedsteer.errors import DataError
from fedsteer.records.files import write_atomically
from fedsteer.records.names import ARRAYS, FAILURE, MANIFEST, RESULT, stream_file

ARCHIVE = "records.tar.xz"
SHEET = "sheet.json"
DIGITS = 4  # significant ones of all other numbers in rows
EXACT = {"accuracy", "group_accuracy", "held_out_accuracy"}
LEFT_OUT = {"rounds": {"class_accuracy"}, "clients": {"cosine", "loss", "norm", "steps"}}
"""Bulky, and no table or picture reads them."""
WHOLE = (MANIFEST, RESULT, FAILURE)
BULKY = (stream_file("clients"), ARRAYS)
MOST_BYTES = 1 << 30  # unpacked, all members together
MOST_MEMBERS = 100_000
MEMORY = 1 << 28  # of the decompressor
MAGIC = b"\xfd7zXZ\0"  # what every .xz file begins with
# Text of digits: four bits of context from the byte before, none from the position.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]

Members = dict[str, bytes]
"""Path inside the archive -> content."""


def write_archive(path: Path, members: Mapping[str, bytes]) -> None:
    """Files of the same kind stand together: they have most in common."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(members, key=lambda name: (PurePosixPath(name).name, name)):
            entry = tarfile.TarInfo(name)  # mtime, uid and gid are 0
            entry.size, entry.mode = len(members[name]), 0o644
            tar.addfile(entry, io.BytesIO(members[name]))
    packed = lzma.compress(raw.getvalue(), lzma.FORMAT_XZ, filters=FILTERS)
    write_atomically(path, packed)


def read_archive(path: Path) -> Members:
    """Every plain file of an archive, in memory."""
    packed = path.read_bytes()
    if not packed.startswith(MAGIC):  # a short file of another kind would pass for a cut one
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


def _members(path: Path, raw: bytes) -> Members:
    found: Members = {}
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
        for count, entry in enumerate(tar):
            if count >= MOST_MEMBERS:
                raise DataError(f"{path} holds more than {MOST_MEMBERS} files")
            if entry.isdir():
                continue
            name = PurePosixPath(entry.name)
            # A link or a sparse file may claim any size or place; records are plain files.
            plain = entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse()
            if not plain or name.is_absolute() or ".." in name.parts:
                raise DataError(f"{path}: {entry.name!r} is not a plain file below the archive")
            file = tar.extractfile(entry)
            found[str(name)] = b"" if file is None else file.read()
    return found


def compact_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> bytes:
    """JSON lines of `rounds` or `clients` with short numbers and without `LEFT_OUT`."""
    lines = []
    for row in rows:
        kept = {key: value for key, value in row.items() if key not in LEFT_OUT[name]}
        lines.append({k: v if k in EXACT else shortened(v) for k, v in kept.items()})
    return b"".join(compact_json(line) + b"\n" for line in lines)


def compact_json(value: Any) -> bytes:
    """One JSON document without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


def shortened(value: Any) -> Any:
    """Fractions with `DIGITS` significant digits; whole numbers without a fraction."""
    if isinstance(value, dict):
        return {key: shortened(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [shortened(entry) for entry in value]
    if isinstance(value, float):
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return value
