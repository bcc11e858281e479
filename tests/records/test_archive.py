"""Packed runs: they keep what tables need, are reproducible, and safe to open."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.records import RecordWriter, Run, archive, find_runs, pack_records, read_sheet
from fedsteer.records.archive import read_archive, write_archive
from fedsteer.records.pack import shortened
from fedsteer.report import summarise, to_csv, to_markdown
from fedsteer.report.figures.accuracy import to_svg
from fedsteer.report.page import render
from tests.report.made_records import make_comparison, make_run

LABELS = ("fedavg", "fedsteer (paper)")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return make_comparison(tmp_path / "runs", LABELS, seeds=2, rounds=12, clients=8)


def test_tables_and_curves_are_the_same_from_the_archive(runs: Path, tmp_path: Path) -> None:
    packed = tmp_path / "records.tar.xz"
    assert pack_records([runs], packed, clients="all") == 4
    whole, small = find_runs(runs), find_runs(packed)
    assert [run.folder.relative_to(packed) for run in small] == [
        run.folder.relative_to(runs) for run in whole
    ]
    for one, other in zip(whole, small, strict=True):
        assert one.manifest == other.manifest and one.result == other.result
        assert other.finished and other.failure is None and other.rows("timing") == []
        assert len(one.rounds) == len(other.rounds)
        assert len(one.rows("clients")) == len(other.rows("clients"))
        assert one.arrays.keys() == other.arrays.keys()
    for form in (to_csv, to_markdown):
        assert form(summarise(small)) == form(summarise(whole))
    assert to_svg(small, "x") == to_svg(whole, "x")
    assert "coordinates" in render(small, "x")


def test_rows_keep_four_digits_and_accuracies_all(tmp_path: Path) -> None:
    with closing(RecordWriter(tmp_path / "run")) as records:
        records.manifest({"seed": 0})
        row = {"round": 1, "delta_norm": 1.23456789, "accuracy": 0.123456789, "loss": 1.5}
        records.append("rounds", row | {"bytes_up": 123456789, "class_accuracy": [0.1]})
        records.append("clients", {"round": 1, "client": "key-a", "staleness": 7.0, "norm": 2.0})
        records.finish({"accuracy": 0.123456789, "class_accuracy": [0.1]})
    pack_records([tmp_path], tmp_path / "records.tar.xz")
    (run,) = find_runs(tmp_path / "records.tar.xz")
    assert run.rounds == [
        {"round": 1, "delta_norm": 1.235, "accuracy": 0.123456789, "loss": 1.5}
        | {"bytes_up": 123456789}
    ]
    assert run.rows("clients") == [{"round": 1, "client": "key-a", "staleness": 7}]
    assert run.result == {"accuracy": 0.123456789, "class_accuracy": [0.1]}


@pytest.mark.parametrize("value", [12345.678, 1e-9 / 3, -2.5, 7.0, 1e300, [0.1234567], {"a": 0.5}])
def test_shortening_twice_changes_nothing(value: object) -> None:
    once = shortened(value)
    assert json.dumps(shortened(once)) == json.dumps(once)


@pytest.mark.parametrize(
    ("clients", "detailed"),
    [("none", set()), ("first", {"seed-0"}), ("all", {"seed-0", "seed-1"})],
)
def test_which_runs_keep_their_clients(
    runs: Path, tmp_path: Path, clients: str, detailed: set[str]
) -> None:
    packed = tmp_path / "records.tar.xz"
    pack_records([runs], packed, clients=clients)
    found = find_runs(packed)
    assert {run.folder.name for run in found if run.rows("clients")} == detailed
    assert {run.folder.name for run in found if run.arrays} == detailed
    with pytest.raises(ConfigurationError, match="unknown choice of clients"):
        pack_records([runs], packed, clients="some")


def test_of_many_runs_the_accuracies_alone_can_be_kept(runs: Path, tmp_path: Path) -> None:
    whole, small = tmp_path / "whole.tar.xz", tmp_path / "small.tar.xz"
    pack_records([runs], whole, clients="none")
    pack_records([runs], small, clients="none", rounds="accuracies")
    assert small.stat().st_size < 0.7 * whole.stat().st_size
    for ours, theirs in zip(find_runs(small), find_runs(whole), strict=True):
        assert len(ours.rounds) == len(theirs.rounds) and ours.result == theirs.result
        assert ours.late() == theirs.late() and ours.late() is not None
        assert "delta_norm" in theirs.rounds[0] and "delta_norm" not in ours.rounds[0]
    with pytest.raises(ConfigurationError, match="unknown choice of rounds"):
        pack_records([runs], small, rounds="some")


def test_the_same_records_give_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    first, second, again = (tmp_path / f"{name}.tar.xz" for name in ("first", "second", "again"))
    pack_records([runs], first)
    for path in runs.rglob("*"):  # another day, another order of files
        if path.is_file():
            path.touch()
    pack_records([runs], second)
    pack_records([first], again)
    assert first.read_bytes() == second.read_bytes() == again.read_bytes()


def test_folders_of_several_places_and_unfinished_runs(runs: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other" / "seed-0", finish=False, name="more")
    (other / "failure.json").write_text('{"reason": "diverged"}')
    packed = tmp_path / "out" / "records.tar.xz"
    assert pack_records([runs, tmp_path / "other"], packed) == 5
    found = find_runs(packed.parent)  # an archive stands for the runs its folder lacks
    assert {run.folder.relative_to(packed).parts[0] for run in found} == {"runs", "other"}
    (failed,) = [run for run in found if run.failure]
    assert failed.failure == "diverged" and not failed.finished and failed.result is None
    assert pack_records([other], tmp_path / "one.tar.xz") == 1
    assert pack_records([runs, runs], packed) == 4, "the same runs twice are packed once"
    name = find_runs(runs)[0].folder.relative_to(runs)
    make_run(tmp_path / "elsewhere" / "runs" / name, name="more")
    with pytest.raises(DataError, match="would get the same name"):
        pack_records([runs, tmp_path / "elsewhere" / "runs"], packed)


def test_the_sheet_is_packed_too(runs: Path, tmp_path: Path) -> None:
    packed = tmp_path / "records.tar.xz"
    assert read_sheet(runs) is None
    pack_records([runs], packed)
    assert read_sheet(packed) is None
    (runs / "sheet.json").write_text('{"name": "table1"}')
    pack_records([runs], packed)
    assert read_sheet(runs) == read_sheet(packed) == read_sheet(tmp_path) == {"name": "table1"}
    pack_records([packed], tmp_path / "again.tar.xz", sheet={"name": "other"})
    assert read_sheet(tmp_path / "again.tar.xz") == {"name": "other"}
    (runs / "sheet.json").write_text("[]")
    with pytest.raises(DataError, match="not a JSON object"):
        read_sheet(runs)


def hostile(path: Path, *entries: tarfile.TarInfo) -> Path:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in entries:
            tar.addfile(entry, io.BytesIO(b"x" * entry.size))
    path.write_bytes(lzma.compress(raw.getvalue()))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    return found


@pytest.mark.parametrize(
    "bad",
    [
        entry("../../evil/manifest.json"),
        entry("/etc/manifest.json"),
        entry("a/manifest.json", tarfile.SYMTYPE, "/etc/passwd"),
        entry("a/manifest.json", tarfile.LNKTYPE, "b"),
        entry("a/manifest.json", tarfile.FIFOTYPE),
    ],
)
def test_only_plain_files_below_the_archive_are_read(bad: tarfile.TarInfo, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a plain file below the archive"):
        find_runs(hostile(tmp_path / "records.tar.xz", bad))
    assert [path.name for path in tmp_path.iterdir()] == ["records.tar.xz"]


def test_a_sparse_file_that_claims_to_be_huge(tmp_path: Path) -> None:
    header = tarfile.TarInfo("a/rounds.jsonl")
    sparse = {"major": "1", "minor": "0", "realsize": str(1 << 50), "name": "a/rounds.jsonl"}
    header.pax_headers = {f"GNU.sparse.{key}": value for key, value in sparse.items()}
    body = b"0\n".ljust(512, b"\0")
    header.size = len(body)
    path = tmp_path / "records.tar.xz"
    path.write_bytes(lzma.compress(header.tobuf(tarfile.PAX_FORMAT) + body + bytes(1024)))
    with pytest.raises(DataError, match="is not a plain file"):
        read_archive(path)


def test_limits_and_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "records.tar.xz"
    write_archive(path, {"a/manifest.json": b"{}", "a/rounds.jsonl": b"0" * 50_000})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"records\.tar\.xz: is cut short"):
        find_runs(path)
    for content in (b"", b"hello", b"hello" * 20):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is not an archive of records"):
            find_runs(path)
    path.write_bytes(lzma.compress(b"no tar inside" * 100))
    with pytest.raises(DataError, match="is not an archive of records"):
        find_runs(path)
    write_archive(path, {"a/result.json": b"{}"})
    with pytest.raises(DataError, match="holds no runs"):
        find_runs(path)
    path.write_bytes(whole)
    monkeypatch.setattr(archive, "MOST_BYTES", 10_000)
    with pytest.raises(DataError, match="holds more than 0 MiB"):
        find_runs(path)
    monkeypatch.setattr(archive, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(archive, "MOST_MEMBERS", 1)
    with pytest.raises(DataError, match="holds more than 1 files"):
        find_runs(path)


def test_damaged_content_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.tar.xz"
    deep = b"[" * 100_000
    write_archive(path, {"a/manifest.json": deep, "a/rounds.jsonl": deep + b"\n"})
    (run,) = find_runs(path)
    with pytest.raises(DataError, match=r"records\.tar\.xz/a/manifest\.json is not a JSON object"):
        _ = run.manifest
    with pytest.raises(DataError, match=r"rounds\.jsonl, line 1, is not a JSON row"):
        _ = run.rounds
    with pytest.raises(DataError, match=r"arrays\.safetensors is not a file of arrays"):
        _ = Run(tmp_path, {"arrays.safetensors": b"\xff" * 100}).arrays
    assert np.array_equal(Run(tmp_path, {}).rounds, [])
