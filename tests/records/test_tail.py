"""Following a growing file: whole rows, each once, and what was cut back is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsteer.records.tail import Tail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rounds.jsonl"


def look(tail: Tail) -> list[dict[str, Any]]:
    return list(tail.rows())


def test_each_row_comes_once_and_only_when_it_is_whole(path: Path) -> None:
    tail = Tail(path)
    assert look(tail) == [] and not tail.replaced()  # the file may come later
    path.write_text('{"round":1}\n{"rou')
    assert look(tail) == [{"round": 1}] and look(tail) == []
    with path.open("a") as file:
        file.write('nd":2}\n{"round":3}\n')
    assert not tail.replaced()
    assert look(tail) == [{"round": 2}, {"round": 3}] and look(tail) == []


def test_a_file_that_did_not_change_is_not_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text('{"round":1}\n')
    tail = Tail(path)
    assert look(tail)
    monkeypatch.setattr(Path, "open", None)
    assert look(tail) == [] and not tail.replaced()


def test_what_was_read_is_not_read_again(path: Path) -> None:
    path.write_text('{"round":1}\n' * 1000)
    tail = Tail(path)
    assert len(look(tail)) == 1000
    whole = path.read_bytes()
    path.write_bytes(b"x" * (len(whole) - 12) + whole[-12:] + b'{"round":2}\n')
    assert look(tail) == [{"round": 2}] and tail.damaged == 0


@pytest.mark.parametrize(
    "after",
    [
        '{"round":1}\n',  # cut back
        '{"round":1}\n{"round":2,"other":true}\n{"round":3}\n',  # and grown past where we were
        "",
        None,  # removed
    ],
)
def test_a_file_that_was_cut_back_or_replaced_is_noticed(path: Path, after: str | None) -> None:
    path.write_text('{"round":1}\n{"round":2}\n')
    tail = Tail(path)
    assert len(look(tail)) == 2
    path.unlink() if after is None else path.write_text(after)
    assert tail.replaced()


def test_lines_that_are_no_rows_are_counted_and_left_out(path: Path) -> None:
    path.write_bytes(b'\0\0\0\n[1]\n{"round":1}\nnull\n' + b"[" * 100_000 + b'\n{"round":2}\n')
    tail = Tail(path)
    assert look(tail) == [{"round": 1}, {"round": 2}] and tail.damaged == 4
