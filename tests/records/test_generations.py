"""Two generations of checkpoints: whatever is damaged, the better one is used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedsteer.errors import DataError
from fedsteer.records import checkpoint
from fedsteer.records.checkpoint import PARTS
from fedsteer.records.generations import Generation, Generations
from fedsteer.records.names import BEFORE, CHECKPOINT


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LARGE", 64)


def content(number: int) -> dict[str, Any]:
    """A model that changes, columns of which one changes, and numbers too small for a part."""
    columns = np.repeat(np.arange(1.0, 4.0)[:, None], 20, axis=1)
    columns[0] = 100.0 + number
    return {"model": np.full(20, 10.0 + number), "columns": columns, "few": np.arange(3.0)}


def written(folder: Path, *numbers: int) -> Generations:
    """These rounds, by one process."""
    generations = Generations(folder)
    for number in numbers:
        generations.write(content(number), {"number": number}, in_parts=True)
    return generations


def read(folder: Path) -> Generation:
    found = Generations(folder).read(lambda path, meta: None)
    assert found is not None
    return found


def part(folder: Path, name: str, row: int, number: int) -> Path:
    """The file of the `row`th part of an array."""
    array = content(number)[name]
    piece = array[row] if array.ndim == 2 else array
    return folder / PARTS / checkpoint._digest(piece.tobytes())


def flip(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)


def test_without_damage_the_newer_one_is_used(tmp_path: Path) -> None:
    assert Generations(tmp_path).read(lambda path, meta: None) is None
    written(tmp_path, 1, 2, 3)
    found = read(tmp_path)
    assert found.pieces.meta == {"number": 3} and not found.older and not found.problem
    assert checkpoint.read_checkpoint(tmp_path / BEFORE)[1] == {"number": 2}


def test_the_older_one_is_the_same_file_and_not_written_again(tmp_path: Path) -> None:
    generations = written(tmp_path, 1)
    inode = (tmp_path / CHECKPOINT).stat().st_ino
    generations.write(content(2), {"number": 2}, in_parts=True)
    assert (tmp_path / BEFORE).stat().st_ino == inode
    for number in range(3, 9):
        generations.write(content(number), {"number": number}, in_parts=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [BEFORE, CHECKPOINT, PARTS]
    assert len(list((tmp_path / PARTS).iterdir())) == 4 + 2, "model and column of two rounds"


@pytest.mark.parametrize("name", [CHECKPOINT, BEFORE])
def test_every_byte_of_a_checkpoint_counts(name: str, tmp_path: Path) -> None:
    """Header, arrays, end: a damaged newer one is never used, a damaged older one does no harm."""
    written(tmp_path, 1, 2)
    path = tmp_path / name
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = read(tmp_path)
        assert found.older == (name == CHECKPOINT), f"byte {place}"
        assert found.pieces.meta["number"] == (1 if found.older else 2)
        assert found.older == (str(path) in found.problem)


@pytest.mark.parametrize("how", ["gone", "empty", "cut", "zeroed", "zero tail", "no checksum"])
def test_damage_of_the_newer_one(how: str, tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    path = tmp_path / CHECKPOINT
    whole = path.read_bytes()
    half = len(whole) // 2
    if how == "gone":
        path.unlink()
    elif how == "no checksum":
        save_file({"few": np.zeros(2)}, path, {"fedsteer": json.dumps({"number": 3})})
    else:
        kept = {"empty": b"", "cut": whole[:half], "zeroed": bytes(len(whole))}
        path.write_bytes(kept.get(how, whole[:-5] + bytes(5)))
    found = read(tmp_path)
    assert found.older and found.pieces.meta == {"number": 1} and str(path) in found.problem
    (tmp_path / BEFORE).unlink()
    if how != "gone":
        words = "no checksum" if how == "no checksum" else "not a checkpoint|damaged"
        with pytest.raises(DataError, match=words) as caught:
            read(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_damaged_one_never_becomes_the_older_one(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    flip(tmp_path / CHECKPOINT)
    resumed = Generations(tmp_path)
    resumed.read(lambda path, meta: None)
    resumed.write(content(3), {"number": 3}, in_parts=True)
    assert read(tmp_path).pieces.meta == {"number": 3}
    flip(tmp_path / CHECKPOINT)
    found = read(tmp_path)
    assert found.pieces.meta == {"number": 1} and not found.pieces.lost


def test_a_kill_between_the_two_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generations = written(tmp_path, 1, 2)
    replace = os.replace

    def dies(source: Path, target: Path) -> None:
        if Path(target).name == CHECKPOINT:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            generations.write(content(3), {"number": 3}, in_parts=True)
    assert not (tmp_path / CHECKPOINT).exists()
    found = read(tmp_path)
    assert found.pieces.meta == {"number": 2} and not found.pieces.lost


def test_a_damaged_part_of_the_newer_one_alone(tmp_path: Path) -> None:
    """The repeated round has the same part again, and must not find the damaged file good."""
    written(tmp_path, 1, 2)
    flip(part(tmp_path, "columns", 0, 2))
    resumed = Generations(tmp_path)
    found = resumed.read(lambda path, meta: None)
    assert found is not None and found.older and not found.pieces.lost
    assert "a part of a checkpoint, is damaged" in found.problem
    resumed.write(content(2), {"number": 2}, in_parts=True)
    found = read(tmp_path)
    assert not found.older and not found.problem
    np.testing.assert_array_equal(found.pieces.arrays["columns"], content(2)["columns"])


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_part_of_both_is_lost_and_nothing_else(how: str, tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    path = part(tmp_path, "columns", 2, 2)
    if how == "missing":
        path.unlink()
    else:
        flip(path)
    found = read(tmp_path)
    assert not found.older and found.pieces.lost == {"columns": [2]}
    assert found.problem == f"{path}, a part of a checkpoint, is {how}"
    whole = content(2)
    whole["columns"][2] = 0.0
    for name, array in whole.items():
        np.testing.assert_array_equal(found.pieces.arrays[name], array)


def test_the_one_that_has_lost_less_is_used(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    flip(part(tmp_path, "columns", 2, 2))
    flip(part(tmp_path, "model", 0, 2))
    found = read(tmp_path)
    assert found.older and found.pieces.lost == {"columns": [2]}


def test_a_disk_that_cannot_read_a_part_has_damaged_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, 1, 2)
    path, real = part(tmp_path, "columns", 2, 2), Path.read_bytes
    problem = OSError(5, "Input/output error")

    def reads(file: Path) -> bytes:
        if file == path:
            raise problem
        return real(file)

    monkeypatch.setattr(Path, "read_bytes", reads)
    assert read(tmp_path).pieces.lost == {"columns": [2]}
    problem = PermissionError(13, "Permission denied")  # it may be whole
    with pytest.raises(PermissionError, match=path.name):
        read(tmp_path)


def test_whatever_else_a_check_raises_is_raised(tmp_path: Path) -> None:
    """Another run's checkpoint is no damage that the older one could heal."""

    def check(path: Path, meta: dict[str, Any]) -> None:
        raise ValueError(f"{path.name} is another run's")

    written(tmp_path, 1, 2)
    with pytest.raises(ValueError, match=f"{CHECKPOINT} is another run's"):
        Generations(tmp_path).read(check)


def test_files_of_others_in_a_folder_of_the_same_name_stay(tmp_path: Path) -> None:
    (tmp_path / PARTS).mkdir()
    (tmp_path / PARTS / "mine").write_text("of the user")
    generations = Generations(tmp_path)
    for number in (1, 2):
        generations.write(content(number), {"number": number})
    flip(tmp_path / CHECKPOINT)
    generations.read(lambda path, meta: None)
    generations.write(content(3), {"number": 3})
    generations.forget()
    assert [path.name for path in tmp_path.rglob("*")] == [PARTS, "mine"]
