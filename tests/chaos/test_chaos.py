"""The crash matrix in short, and whether its disk would notice what is not synced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.disk import Call, Disk
from tests.chaos.power import CUT, LOSSES, REORDERED, UNDONE, ZEROED

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads Linux's /proc")
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.chaos
def test_the_short_form() -> None:
    """In a process without threads, which can be forked."""
    command = [sys.executable, "-m", "tests.chaos", "--short"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (total,) = [line for line in done.stdout.splitlines() if line.startswith("| all  ")]
    hit, there, equal, refused, failures = map(int, total.strip("| ").split("|")[1:])
    assert hit == equal >= 20 and there > 15 and refused >= 3 and failures == 0


def write(path: Path, content: bytes, *, sync: bool) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def unseen(call: Call, number: int) -> None:
    pass


@pytest.mark.parametrize("loss", LOSSES)
def test_what_was_synced_stays(loss: str, tmp_path: Path) -> None:
    disk = Disk(tmp_path, unseen)
    with disk.patched():
        write(tmp_path / "a.new", b"content", sync=True)
        os.replace(tmp_path / "a.new", tmp_path / "a")
        sync_folder(tmp_path)
        disk.ledger.lose(loss)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"content"}


@pytest.mark.parametrize(("loss", "left"), [(CUT, b"old"), (ZEROED, b"old" + bytes(4))])
def test_an_end_that_was_not_synced_is_lost(loss: str, left: bytes, tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"old")
    disk = Disk(tmp_path, unseen)
    with disk.patched(), (tmp_path / "rows").open("ab") as file:
        file.write(b"more")
        file.flush()
        disk.ledger.lose(loss)
    assert (tmp_path / "rows").read_bytes() == left


@pytest.mark.parametrize(
    ("loss", "left"),
    [
        (CUT, {"a": b"new", "b": b"old"}),
        (UNDONE, {"a": b"old", "b": b"older"}),
        (REORDERED, {"b": b"older", "a": b"old"}),
    ],
)
def test_names_that_were_not_synced(loss: str, left: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").write_bytes(b"older")
    disk = Disk(tmp_path, unseen)
    with disk.patched():
        write(tmp_path / "a.new", b"new", sync=True)
        os.replace(tmp_path / "a", tmp_path / "b")
        os.replace(tmp_path / "a.new", tmp_path / "a")
        disk.ledger.lose(loss)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left


def test_every_call_is_shown_in_order(tmp_path: Path) -> None:
    seen: list[tuple[int, str, str]] = []

    def see(call: Call, number: int) -> None:
        seen.append((number, call.kind, call.path.name))

    with Disk(tmp_path, see).patched():
        write(tmp_path / "a", b"content", sync=True)
        with (tmp_path / "a").open("ab") as file:
            file.truncate(2)
        os.replace(tmp_path / "a", tmp_path / "b")
        (tmp_path / "b").unlink()
    kinds = ["write", "fsync", "truncate", "rename", "remove"]
    assert seen == [(n, kind, "aaabb"[n]) for n, kind in enumerate(kinds)]
