"""Large arrays of a checkpoint: written once, switched at once, damage is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsteer.errors import DataError
from fedsteer.records import checkpoint
from fedsteer.records.checkpoint import PARTS, read_checkpoint, write_checkpoint
from fedsteer.records.generations import Generations
from fedsteer.records.names import CHECKPOINT


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LARGE", 64)


def content(seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(5, 40)).astype(np.float32)
    rows[3] = 0.0
    return {
        "rows": rows,
        "vector": draw.normal(size=30),
        "wide": draw.normal(size=(40, 3)),
        "half": draw.normal(size=(2, 64)).astype(np.float16),
        "bits": np.arange(50, dtype=np.uint16),
        "small": np.arange(3.0),
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 40)),
    }


def save(folder: Path, arrays: dict[str, Any], number: int = 1) -> None:
    """As a process does that has just resumed."""
    generations = Generations(folder)
    generations.read(lambda path, meta: None)
    generations.write(arrays, {"number": number}, in_parts=True)


def assert_holds(folder: Path, arrays: dict[str, Any], number: int = 1) -> None:
    found, meta = read_checkpoint(folder / CHECKPOINT)
    assert meta == {"number": number} and set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def files(folder: Path) -> dict[str, int]:
    """What is on disk, and which file it is: one that was written again is another."""
    return {file.name: file.stat().st_ino for file in (folder / PARTS).iterdir()}


@pytest.mark.parametrize("place", ["/etc/hostname", "../../secrets", 3])
def test_a_part_is_in_its_folder(place: object, tmp_path: Path) -> None:
    entry = {"dtype": "<f4", "shape": [2], "parts": [place]}
    write_checkpoint(tmp_path / "c", {}, {"parts": {"model": entry}})
    with pytest.raises(DataError, match="c is not a checkpoint of fedsteer"):
        read_checkpoint(tmp_path / "c")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    save(tmp_path, content())
    assert_holds(tmp_path, content())
    # Four rows that are not zero, vector, wide, two rows of half, bits.
    assert len(files(tmp_path)) == 4 + 1 + 1 + 2 + 1


def test_only_what_changed_is_written_again(tmp_path: Path) -> None:
    arrays = content()
    save(tmp_path, arrays)
    before = files(tmp_path)
    arrays["rows"][1] += 1.0
    save(tmp_path, arrays, number=2)
    after = files(tmp_path)
    assert_holds(tmp_path, arrays, number=2)
    assert before.items() < after.items() and len(after) == len(before) + 1
    save(tmp_path, arrays, number=3)
    assert len(files(tmp_path)) == len(before), "parts of the last two checkpoints stay"


@pytest.mark.parametrize("written", range(4))
def test_a_write_that_is_cut_short_leaves_the_checkpoint_before(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its files it was that did not get to the disk."""
    old, new = content(0), content(1)
    save(tmp_path, old)
    real, count = checkpoint.write_atomically, 0

    def write(path: Path, data: Any, **more: Any) -> None:
        nonlocal count
        if count == written:
            raise OSError(28, "No space left on device", str(path))
        count += 1
        real(path, data, **more)

    monkeypatch.setattr(checkpoint, "write_atomically", write)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, new, number=2)
    assert_holds(tmp_path, old)
    monkeypatch.setattr(checkpoint, "write_atomically", real)
    save(tmp_path, new, number=2)
    assert_holds(tmp_path, new, number=2)
    save(tmp_path, new, number=3)
    assert len(files(tmp_path)) == 9


def test_the_switch_is_the_last_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = content(0), content(1)
    save(tmp_path, old)

    real = checkpoint.write_atomically

    def killed(path: Path, data: Any, **more: Any) -> None:
        if path.name == CHECKPOINT:
            raise KeyboardInterrupt
        real(path, data, **more)

    monkeypatch.setattr(checkpoint, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, new, number=2)
    assert_holds(tmp_path, old)


@pytest.mark.parametrize("damage", ["cut", "zeroed", "swapped", "gone", "flipped"])
def test_damage_is_noticed(damage: str, tmp_path: Path) -> None:
    """As after a power loss: tails cut or zeroed, blocks in another order."""
    save(tmp_path, content())
    for file in sorted((tmp_path / PARTS).iterdir()):
        whole = file.read_bytes()
        half = len(whole) // 2
        changed = {
            "cut": whole[:half],
            "zeroed": whole[:half] + bytes(len(whole) - half),
            "swapped": whole[half:] + whole[:half],
            "flipped": bytes([whole[0] ^ 1]) + whole[1:],
        }
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(changed[damage])
        word = "missing" if damage == "gone" else "damaged"
        with pytest.raises(DataError, match=f"{file.name}, a part of a checkpoint, is {word}"):
            read_checkpoint(tmp_path / CHECKPOINT)
        file.write_bytes(whole)
    assert_holds(tmp_path, content())
