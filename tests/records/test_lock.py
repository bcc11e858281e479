"""One writer per folder, also where the file system has no locks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedsteer.errors import ConfigurationError
from fedsteer.records import RecordWriter, lock
from fedsteer.records.lock import LOCK

fcntl = pytest.importorskip("fcntl")


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A file system that answers every `flock` with an error."""
    number = getattr(request, "param", errno.ENOLCK)

    def refuses(file: Any, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuses)
    monkeypatch.setattr(lock, "PAUSE", 0.01)
    monkeypatch.setattr(lock, "SETTLE", 0.02)


NO_LOCKS = [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL]


def left_behind(folder: Path, **changes: Any) -> Path:
    """The lock of a process that was killed, here or as `changes` say."""
    path = folder / LOCK
    source = "import json; from fedsteer.records import lock; "
    program = source + "print(json.dumps(lock._this_process()))"
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    path.write_text(json.dumps(json.loads(made.stdout) | changes))
    return path


@pytest.mark.parametrize("no_locks", NO_LOCKS, indirect=True)
def test_a_file_names_the_writer(no_locks: None, tmp_path: Path) -> None:
    with closing(RecordWriter(tmp_path)):
        assert json.loads((tmp_path / LOCK).read_bytes())["pid"] == os.getpid()
        with pytest.raises(ConfigurationError) as caught:
            RecordWriter(tmp_path)
        assert f"{tmp_path / LOCK} names process {os.getpid()} of" in str(caught.value)
        assert "if that no longer runs, remove this file" in str(caught.value)
        assert (tmp_path / LOCK).exists(), "who was refused must not remove it"
    assert not (tmp_path / LOCK).exists()
    RecordWriter(tmp_path).close()


def test_the_lock_of_the_next_writer_stays(no_locks: None, tmp_path: Path) -> None:
    """Somebody removed ours and began another one."""
    with closing(RecordWriter(tmp_path)):
        path = left_behind(tmp_path, host="elsewhere")
    assert path.exists()


def test_with_locks_there_is_no_such_file(tmp_path: Path) -> None:
    with closing(RecordWriter(tmp_path)):
        assert not (tmp_path / LOCK).exists()
        with pytest.raises(ConfigurationError, match="another process is still writing"):
            RecordWriter(tmp_path)


def test_the_lock_of_a_killed_process_is_replaced(no_locks: None, tmp_path: Path) -> None:
    left_behind(tmp_path)
    with closing(RecordWriter(tmp_path)):
        assert json.loads((tmp_path / LOCK).read_bytes())["pid"] == os.getpid()
    assert not (tmp_path / LOCK).exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    "changes",
    [{"pid": os.getpid(), "began": "1"}, {"pid": os.getpid(), "boot": "an earlier one"}],
    ids=["the number was given anew", "the machine was started anew"],
)
def test_a_running_process_of_the_same_number_is_another(
    changes: dict[str, Any], no_locks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = lock._line
    monkeypatch.setattr(lock, "_line", lambda path: "7" if "machine-id" in path else line(path))
    left_behind(tmp_path, machine="7", **changes)
    RecordWriter(tmp_path).close()


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "elsewhere"},
        {"machine": "another with this name"},
        {"processes": "another container"},
        {"pid": "no number"},
        {"pid": os.getppid(), "began": lock._began(os.getppid())},
    ],
)
def test_where_nobody_can_tell_it_says_which_file_to_remove(
    changes: dict[str, Any], no_locks: None, tmp_path: Path
) -> None:
    path = left_behind(tmp_path, **changes)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError) as caught:
        RecordWriter(tmp_path, patience=0.05)
    said = str(caught.value)
    assert said.startswith(f"{path} names process") and said.endswith("remove this file")
    assert "still writing" not in said and "\n" not in said
    assert path.read_bytes() == before
    path.unlink()
    RecordWriter(tmp_path).close()


@pytest.mark.parametrize("content", [b"", bytes(80), b"[1]"])
def test_a_damaged_lock_file(content: bytes, no_locks: None, tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(content)
    with pytest.raises(ConfigurationError, match="does not say which process writes"):
        RecordWriter(tmp_path)


def test_a_writer_that_ends_meanwhile_is_waited_for(
    no_locks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RecordWriter(tmp_path)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: first.close())
    RecordWriter(tmp_path, patience=5.0).close()


def test_of_two_that_replace_a_lock_one_remains(
    no_locks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both saw that the process is gone; the other one wrote last, and runs."""
    path = left_behind(tmp_path)
    other = lock._this_process() | {"pid": os.getppid(), "began": lock._began(os.getppid())}
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: path.write_text(json.dumps(other)))
    with pytest.raises(ConfigurationError, match=f"names process {os.getppid()}"):
        RecordWriter(tmp_path)


@pytest.mark.parametrize("no_locks", [errno.EIO], indirect=True)
def test_another_error_is_no_other_process(no_locks: None, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="rounds") as caught:
        RecordWriter(tmp_path)
    assert caught.value.errno == errno.EIO


def test_a_full_disk_leaves_no_lock_without_a_name(
    no_locks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(lock, "write_atomically", full)
        with pytest.raises(OSError, match=LOCK):
            RecordWriter(tmp_path)
    RecordWriter(tmp_path).close()
