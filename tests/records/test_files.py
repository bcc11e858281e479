"""Files are whole or not there; numbers that JSON does not know are converted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer.errors import DataError
from fedsteer.records import Run, read_checkpoint, write_checkpoint
from fedsteer.records.files import (
    json_object,
    number,
    plain,
    write_atomically,
    write_json,
)
from tests.files import read_json


def test_a_kill_before_the_rename_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "file.json"
    write_json(path, {"a": 1})

    def die(source: Any, target: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1}
    write_json(path, {"a": 3})
    assert read_json(path) == {"a": 3}
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


def test_a_folder_in_the_way_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "taken", b"content")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_a_full_disk_names_the_file_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*report.html"):
        write_atomically(tmp_path / "report.html", b"content")
    assert not list(tmp_path.iterdir())


def test_content_is_on_disk_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (order.append("fsync"), fsync(file))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("rename"), replace(a, b))[1])
    write_atomically(tmp_path / "file", b"content")
    assert order == ["fsync", "rename", "fsync"]  # the file, then its folder


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (float("inf"), None),
        (-float("inf"), None),
        (np.float64("nan"), None),
        (np.float32(0.1), 0.100000001),
        (1 / 3, 0.333333333),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (True, True),
        (None, None),
        ("a", "a"),
        (np.array([1.0, np.nan]), [1.0, None]),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (torch.tensor([1.5, 2.5]), [1.5, 2.5]),
        ((1, 2), [1, 2]),
        ({3: np.float32(1)}, {"3": 1.0}),
        ({"a": [{"b": np.array(2)}]}, {"a": [{"b": 2}]}),
    ],
)
def test_plain(value: Any, expected: Any) -> None:
    found = plain(value)
    assert found == expected and type(found) is type(expected)
    json.dumps(found, allow_nan=False)


def test_nine_digits_keep_float32_exactly() -> None:
    numbers = np.random.default_rng(0).standard_normal(2_000).astype(np.float32)
    numbers *= np.float32(10) ** np.random.default_rng(1).integers(-30, 30, 2_000)
    back = np.array(json.loads(json.dumps(plain(numbers))), np.float32)
    np.testing.assert_array_equal(back, numbers)


def test_damaged_json_is_refused_by_name(tmp_path: Path) -> None:
    for content in (b'{"a": 1', b"\xff\xfe"):
        with pytest.raises(DataError, match=r"a\.json is not a JSON object"):
            Run(tmp_path, {"a.json": content}).json("a.json")


def test_checkpoints_come_back_exactly(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    arrays = {
        "single": draw.standard_normal((3, 4)).astype(np.float32),
        "double": draw.standard_normal(5),
        "whole": np.arange(6).reshape(2, 3).T,  # not contiguous
        "half": np.ones(3, np.float16),
        "flags": np.array([True, False]),
        "nothing": np.zeros((0, 4), np.float32),
        "strange": np.array([np.nan, np.inf, -0.0]),
    }
    meta = {"a": [1, None, "ü"], "b": {"c": 0.1 + 0.2}}
    write_checkpoint(tmp_path / "c.safetensors", arrays, meta)
    found, told = read_checkpoint(tmp_path / "c.safetensors")
    assert told == meta
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == np.ascontiguousarray(array).tobytes()


def test_what_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    with pytest.raises(DataError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "absent")
    path = tmp_path / "c.safetensors"
    save_file({"a": np.zeros(2)}, path)
    with pytest.raises(DataError, match="is not a checkpoint of fedsteer"):
        read_checkpoint(path)
    save_file({"a": np.zeros(2)}, path, {"fedsteer": "{"})
    with pytest.raises(DataError, match="is not a checkpoint of fedsteer"):
        read_checkpoint(path)
    write_checkpoint(path, {"a": np.zeros(200)}, {})
    whole = path.read_bytes()
    for length in (0, 4, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="is not a checkpoint of fedsteer"):
            read_checkpoint(path)
    with pytest.raises(DataError):
        read_checkpoint(tmp_path)


def test_rows_hold_nothing_that_breaks_another_format() -> None:
    odd = json.dumps({"a\0": ["\ud800", "\x1b[31m", "ü\n\t😀", "\ufffe"]}).encode()
    assert json_object(odd) == {"a\ufffd": ["\ufffd", "\ufffd[31m", "ü\n\t😀", "\ufffd"]}
    assert json_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    for wrong in (b"[]", b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", b"\xff", b"9" * 5000):
        with pytest.raises(ValueError):
            json_object(wrong)


def test_numbers_of_hundreds_of_digits_are_none() -> None:
    assert number({"a": 10**400}, "a") is None and number(7) == 7.0
