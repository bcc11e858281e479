"""The judge sees what a reader must not do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedsteer.errors import DataError
from tests.fuzz import judge as judging
from tests.fuzz.judge import Broken, Reader, judge


def raise_(error: Exception) -> None:
    raise error


def forever() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda folder: raise_(KeyError("a")), "KeyError: 'a'"),
        (lambda folder: raise_(DataError("no idea")), "names no file: no idea"),
        (lambda folder: forever(), "Stuck: more than 0.1 seconds"),
        (lambda folder: None, "took 300 MiB"),
    ],
)
def test_a_reader_that_fails(
    act: Callable[[Path], object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "SECONDS", 0.1 if "Stuck" in words else 60.0)
    peaks = iter([0, judging.MEMORY + 1])
    monkeypatch.setattr(judging, "_peak", lambda: next(peaks))
    with pytest.raises(Broken, match=words):
        judge(Reader(lambda data, folder: act(folder), list), b"", tmp_path / "it")


def test_what_it_may_do(tmp_path: Path) -> None:
    def read(data: bytes, folder: Path) -> None:
        if data:
            raise DataError(f"{folder}: two\nlines become one")

    reader = Reader(read, list)
    assert judge(reader, b"", tmp_path / "it") == ""
    assert judge(reader, b"x", tmp_path / "it").endswith("two lines become one")
