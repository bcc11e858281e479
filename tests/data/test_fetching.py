from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from fedsteer.data import CATALOGUE, fetch, load
from fedsteer.data.catalogue import Source
from fedsteer.errors import ConfigurationError, DataError

from .made_files import contents_for, write

pytest.importorskip("pooch")

Downloader = Callable[[str, Any, Any], None]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDSTEER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def copying(served: dict[str, bytes]) -> Downloader:
    """A downloader that needs no network: what an address ends in decides what it gives."""

    def download(url: str, output_file: Any, _: Any) -> None:
        data = served[PurePosixPath(url).name]
        if hasattr(output_file, "write"):
            output_file.write(data)
        else:
            Path(output_file).write_bytes(data)

    return download


def admit(monkeypatch: pytest.MonkeyPatch, entry: Source, served: dict[str, bytes]) -> None:
    """Let the catalogue expect the made-up files instead of the published ones."""
    downloads = tuple(
        replace(
            download,
            checksum=f"md5:{hashlib.md5(served[PurePosixPath(download.url).name]).hexdigest()}",
        )
        for download in entry.downloads
    )
    monkeypatch.setitem(CATALOGUE, entry.name, replace(entry, downloads=downloads))


def served_for(name: str, folder: Path) -> tuple[Source, dict[str, bytes]]:
    """A data set as its official place would serve it: file by file, a tar or a zip."""
    packing = "" if name == "cifar-10" else ".gz"
    entry = write(folder, name, packing, contents_for(name))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    first = entry.downloads[0]
    if not first.members:
        return entry, files
    archive = io.BytesIO()
    if name == "cifar-10":
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            for member in first.members:
                data = files[PurePosixPath(member).name]
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    else:
        with zipfile.ZipFile(archive, "w") as packed_zip:
            for member in first.members:
                packed_zip.writestr(member, files[PurePosixPath(member).name])
            packed_zip.writestr("gzip/something-else.gz", b"not wanted")
    return entry, {PurePosixPath(first.url).name: archive.getvalue()}


@pytest.mark.parametrize("name", ["fashion-mnist", "mnist", "cifar-10", "emnist-balanced"])
def test_fetch_then_load(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, served = served_for(name, tmp_path / "origin")
    admit(monkeypatch, entry, served)
    folder = fetch(name, downloader=copying(served))
    assert folder == tmp_path / "cache" / "fedsteer" / name
    assert len(list(folder.iterdir())) == len(entry.files)  # no archive, no half-written file
    assert load(name).name == name
    assert fetch(name, downloader=copying({})) == folder  # nothing is downloaded twice
    damaged = sorted(folder.iterdir())[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    fetch(name, downloader=copying(served))  # but what is damaged is put right
    assert load(name).name == name


def test_what_is_elsewhere_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, served = served_for("fashion-mnist", tmp_path / "origin")
    admit(monkeypatch, entry, served)
    monkeypatch.setenv("FEDSTEER_DATA", str(tmp_path / "origin"))
    assert fetch("fashion-mnist", downloader=copying({})) == tmp_path / "origin"


def test_a_damaged_file_beside_a_whole_one_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, served = served_for("fashion-mnist", tmp_path / "origin")
    admit(monkeypatch, entry, served)
    folder = fetch("fashion-mnist", downloader=copying(served))
    (folder / entry.files[1].name).write_bytes(b"")  # unpacked, beside the packed one
    assert fetch("fashion-mnist", downloader=copying({})) == folder
    assert load("fashion-mnist").name == "fashion-mnist"


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar-10"])
def test_a_wrong_checksum_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, served = served_for(name, tmp_path / "origin")
    admit(monkeypatch, entry, served)
    tampered = {file: data + b"!" for file, data in served.items()}
    with pytest.raises(DataError, match=f"{name} could not be downloaded: .*hash") as caught:
        fetch(name, downloader=copying(tampered))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.bin"))


def test_a_failing_network_is_a_data_error() -> None:
    def unreachable(*_: object) -> None:
        raise ConnectionError("no route to host")

    with pytest.raises(DataError, match="no route to host"):
        fetch("mnist", downloader=unreachable)


def test_an_archive_without_the_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, _ = served_for("emnist-balanced", tmp_path / "origin")
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w"):
        pass
    served = {"gzip.zip": empty.getvalue()}
    admit(monkeypatch, entry, served)
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch("emnist-balanced", downloader=copying(served))


@pytest.mark.parametrize("name", ["digits", "made", "emnist-bymerge"])
def test_what_cannot_be_downloaded(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} cannot be downloaded"):
        fetch(name)


def test_without_pooch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ConfigurationError, match="pooch"):
        fetch("mnist")


def test_without_a_network_few_words_are_enough() -> None:
    def download(url: str, output_file: Any, _: Any) -> None:
        raise ConnectionError(f"HTTPSConnectionPool({url!r}): " + "Max retries exceeded; " * 50)

    with pytest.raises(DataError) as caught:
        fetch("mnist", downloader=download)
    said = "mnist could not be downloaded: no connection to ossci-datasets.s3.amazonaws.com "
    assert str(caught.value) == f"{said}(ConnectionError)"
