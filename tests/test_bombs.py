"""Small files that would become large: they are refused, or read, in little memory."""

from __future__ import annotations

import gzip
import io
import lzma
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

MOST = 200 << 20
PEAK = """
import re
from pathlib import Path
from fedsteer.errors import FedsteerError
from fedsteer.data.files import File
from fedsteer.participation import read_trace
from fedsteer.records import find_runs

try:
    {call}
    print("read")
except FedsteerError as error:
    print(error)
status = Path("/proc/self/status").read_text()
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]))
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="measures memory as Linux tells it"
)


def said_and_peak(call: str, folder: Path) -> tuple[str, int]:
    """What a reader says in a process of its own, and the most memory that this had."""
    command = [sys.executable, "-c", PEAK.format(call=call)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    said, peak = done.stdout.splitlines()
    return said, int(peak)


def xz(path: Path, parts: Iterable[bytes]) -> None:
    packer = lzma.LZMACompressor(preset=0)
    with path.open("wb") as file:
        file.writelines(packer.compress(part) for part in parts)
        file.write(packer.flush())


def test_an_archive(tmp_path: Path) -> None:
    header = tarfile.TarInfo("a/rounds.jsonl")
    header.size = 250 << 20
    xz(tmp_path / "records.tar.xz", [header.tobuf(), *[bytes(1 << 20)] * 250])
    said, peak = said_and_peak("find_runs(Path('records.tar.xz'))", tmp_path)
    assert said == "records.tar.xz: holds more than 64 MiB"
    assert peak < MOST


def test_an_archive_of_one_header(tmp_path: Path) -> None:
    """tarfile would look at each number of it as the beginning of a record, for hours."""
    long = io.BytesIO(b"1" * (8 << 20))
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.XHDTYPE, len(long.getvalue())
    xz(tmp_path / "records.tar.xz", [header.tobuf(), long.getvalue(), bytes(1024)])
    said, peak = said_and_peak("find_runs(Path('records.tar.xz'))", tmp_path)
    assert said == "records.tar.xz: 'long' has a header of 8,388,608 bytes"
    assert peak < MOST


def test_images(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "images.gz", "wb", compresslevel=1) as file:
        file.writelines([bytes(1 << 20)] * 250)
    call = "File('images', size=1 << 20, checksum='md5:0').read(Path('images.gz'))"
    said, peak = said_and_peak(call, tmp_path)
    assert said == "images.gz: not the published file but more than 1,048,576 bytes"
    assert peak < MOST


def test_a_trace_that_names_the_last_client(tmp_path: Path) -> None:
    (tmp_path / "far.csv").write_text("client,start,end\n0,0,10\n999999,5,20\n")
    call = "read_trace('far.csv', round_seconds=1.0).present(7)"
    said, peak = said_and_peak(call, tmp_path)
    assert said == "read"
    assert peak < MOST
