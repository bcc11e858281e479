"""What the disk refuses names the file; what has to survive a power loss is synced."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsteer.errors import DataError
from fedsteer.records import RecordWriter, Run
from fedsteer.records.files import fsync_folder, make_folder, write_atomically
from fedsteer.records.names import BEFORE, CHECKPOINT, STREAMS

REFUSALS = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES]


class Refusing:
    """A file whose disk refuses one kind of call."""

    def __init__(self, file: Any, call: str, number: int) -> None:
        self.file, self.call, self.number = file, call, number

    def __getattr__(self, name: str) -> Any:
        if name != self.call:
            return getattr(self.file, name)

        def refuses(*given: Any) -> None:
            self.file.close()
            raise OSError(self.number, os.strerror(self.number))

        return refuses


def use(records: RecordWriter) -> None:
    """A round, a checkpoint, and back to it."""
    records.append("clients", {"round": 1, "client": 3})
    records.save({"model": np.zeros(3)}, {"number": 1})
    found = records.load()
    assert found is not None
    records.rewind(found.offsets)


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("call", ["write", "flush", "fileno", "truncate"])
def test_a_record_file_that_cannot_be_written_is_named(
    call: str, number: int, tmp_path: Path
) -> None:
    records = RecordWriter(tmp_path)
    records._files["clients"] = Refusing(records._files["clients"], call, number)  # type: ignore[assignment]
    with pytest.raises(OSError) as caught:
        use(records)
    assert caught.value.errno == number
    assert caught.value.filename == str(tmp_path / "clients.jsonl")
    records.close()


def test_closing_names_the_file_and_lets_go_of_all(tmp_path: Path) -> None:
    records = RecordWriter(tmp_path)
    refusing = Refusing(records._files["rounds"], "close", errno.ENOSPC)
    records._files["rounds"] = refusing  # type: ignore[assignment]
    with pytest.raises(OSError) as caught:
        records.close()
    assert caught.value.filename == str(tmp_path / "rounds.jsonl")
    assert all(file.closed for file in records._files.values())


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_checkpoint_that_cannot_be_written_is_named_and_the_last_one_stays(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*given: Any) -> None:
        raise OSError(number, os.strerror(number))

    with closing(RecordWriter(tmp_path)) as records:
        use(records)
        with monkeypatch.context() as patch:
            # After the record files, which are synced first.
            patch.setattr(RecordWriter, "flush", lambda records: dict.fromkeys(records._files, 0))
            patch.setattr(os, call, refuses)
            with pytest.raises(OSError) as caught:
                records.save({"model": np.ones(3)}, {"number": 2})
    assert caught.value.errno == number and caught.value.filename == str(tmp_path / CHECKPOINT)
    with closing(RecordWriter(tmp_path)) as records:
        found = records.load()
    assert found is not None and found.run == {"number": 1} and not found.warning


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fails)
    with pytest.raises(OSError, match="clients"):
        Run(tmp_path).rows("clients")


def test_a_checkpoint_without_permission_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(RecordWriter(tmp_path)) as records:
        use(records)
    monkeypatch.setattr(os, "access", lambda path, kind: False)  # root may read everything
    with closing(RecordWriter(tmp_path)) as records, pytest.raises(PermissionError) as caught:
        records.load()
    assert caught.value.filename == str(tmp_path / CHECKPOINT)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and renamed from now on, in order."""
    found: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(handle: int) -> None:
        found.append("sync " + Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def note_rename(source: Any, target: Any) -> None:
        found.append("rename " + Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename)
    return found


LINUX = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads Linux's /proc")


@LINUX
def test_folders_and_record_files_survive_a_power_loss(tmp_path: Path, calls: list[str]) -> None:
    with closing(RecordWriter(tmp_path / "runs" / "one")):
        assert calls == ["sync runs", f"sync {tmp_path.name}", "sync one"]
    calls.clear()
    make_folder(tmp_path / "runs" / "one")
    assert calls == []


@LINUX
def test_rows_are_on_disk_before_their_checkpoint_and_that_before_the_next_round(
    tmp_path: Path, calls: list[str]
) -> None:
    with closing(RecordWriter(tmp_path)) as records:
        use(records)
        calls.clear()
        records.save({"model": np.ones(3)}, {"number": 2})
    rows = [f"sync {name}.jsonl" for name in STREAMS]
    renames = [f"rename {BEFORE}", f"rename {CHECKPOINT}"]
    assert calls == [*rows, f"sync {CHECKPOINT}.new", *renames, f"sync {tmp_path.name}"]


@LINUX
def test_checkpoints_are_gone_before_rows_they_would_not_match(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(RecordWriter(tmp_path)) as records:
        use(records)
        calls.clear()
        real = RecordWriter.rewind

        def rewind(writer: RecordWriter, offsets: dict[str, int]) -> None:
            calls.append(f"rewind, checkpoint: {(tmp_path / CHECKPOINT).exists()}")
            real(writer, offsets)

        monkeypatch.setattr(RecordWriter, "rewind", rewind)
        records.erase()
    assert calls == [f"sync {tmp_path.name}", "rewind, checkpoint: False"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO])
def test_some_file_systems_cannot_sync_a_folder(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuses)
    if number == errno.EIO:
        with pytest.raises(OSError) as caught:
            fsync_folder(tmp_path)
        assert caught.value.filename == str(tmp_path)
    else:
        fsync_folder(tmp_path)


def test_a_reason_without_a_number_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> None:
        raise OSError("a reason of its own")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="a reason of its own"):
        write_atomically(tmp_path / "file", b"content")


def three_rounds(folder: Path) -> None:
    """A checkpoint after each of two rounds, and a row after them."""
    with closing(RecordWriter(folder)) as records:
        for number in (1, 2, 3):
            for stream in ("rounds", "clients", "timing"):
                records.append(stream, {"round": number})
            if number < 3:
                records.save({}, {"number": number})


@pytest.mark.parametrize("stream", ["rounds", "clients"])
@pytest.mark.parametrize(("row", "used"), [(3, 2), (2, 1), (1, None)])
def test_zeros_in_a_file_of_rows_are_noticed(
    row: int, used: int | None, stream: str, tmp_path: Path
) -> None:
    """After the last checkpoint they are cut off; before it, the one before it is used."""
    three_rounds(tmp_path)
    path = tmp_path / f"{stream}.jsonl"
    whole = path.read_bytes()
    length = len(whole) // 3
    path.write_bytes(whole[: (row - 1) * length] + bytes(len(whole) - (row - 1) * length))
    with closing(RecordWriter(tmp_path)) as records:
        if used is None:
            with pytest.raises(DataError, match=f"{path} is damaged: its rows are not") as caught:
                records.load()
            assert "\n" not in str(caught.value)
            return
        found = records.load()
        assert found is not None and found.run["number"] == used
        assert ("2 rounds are repeated" in found.warning) == (used == 1)
        records.rewind(found.offsets)
    assert path.read_bytes() == whole[: used * length]


def test_one_round_is_said_as_such(tmp_path: Path) -> None:
    three_rounds(tmp_path)
    with closing(RecordWriter(tmp_path)) as records:
        found = records.load()
        assert found is not None
        records.rewind(found.offsets)
    (tmp_path / CHECKPOINT).write_bytes(b"")
    with closing(RecordWriter(tmp_path)) as records:
        found = records.load()
    assert found is not None and found.run["number"] == 1
    assert found.warning.endswith("the checkpoint before it is used, and 1 round is repeated")


def test_a_resumed_file_of_rows_has_the_checksum_of_all_of_them(tmp_path: Path) -> None:
    three_rounds(tmp_path)
    for number in (3, 4):
        with closing(RecordWriter(tmp_path)) as records:
            found = records.load()
            assert found is not None and not found.warning
            records.rewind(found.offsets)
            records.append("rounds", {"round": number})
            records.save({}, {"number": number})
    assert [row["round"] for row in Run(tmp_path).rows("rounds")] == [1, 2, 3, 4]
