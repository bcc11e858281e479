"""Damage in a federation's folder: what was lost, and that nothing else is."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.records import Run, checkpoint, read_checkpoint, write_checkpoint
from fedsteer.records.checkpoint import PARTS
from fedsteer.records.names import BEFORE, CHECKPOINT
from tests.flower.drifting_clients import FILES, INITIAL, evaluate, strategy_of, world
from tests.flower.fake import arrays, values

REMEDY = "restore {} from a copy, or remove it to start over"
COLUMNS = "rule/state.own.columns.rows"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of six numbers are large here."""
    monkeypatch.setattr(checkpoint, "LARGE", 24)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Our warnings so far."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)

    def warnings() -> list[str]:
        return [
            record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
        ]

    return warnings


FIRST = INITIAL | {"w": np.full((2, 3), 0.5, np.float16)}
"""Not zeros, for which there is no file."""


def run(folder: Path, rounds: int, rule: str = "fedsteer", **options: Any) -> np.ndarray:
    """Until after that many rounds; the model."""
    strategy = strategy_of(rule, folder, **options)
    result = strategy.start(world(), arrays(**FIRST), num_rounds=rounds, evaluate_fn=evaluate)
    return values(result.arrays)["w"]


def assert_same(folder: Path, whole: Path) -> None:
    for name in FILES:
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    best = [(place / "best.safetensors").read_bytes() for place in (folder, whole)]
    assert best[0] == best[1]


def flip(path: Path, place: float = 0.5) -> None:
    whole = bytearray(path.read_bytes())
    whole[int(place * (len(whole) - 1))] ^= 1
    path.write_bytes(whole)


def part(folder: Path, name: str, row: int | None = None, of: str = CHECKPOINT) -> Path:
    """The file of an array, or of one of its rows."""
    found = read_checkpoint(folder / of)[0][name]
    piece = found if row is None else found[row]
    return folder / PARTS / checkpoint._digest(np.ascontiguousarray(piece).tobytes())


def pieces(folder: Path, of: str) -> set[Path]:
    return {folder / PARTS / name for name in checkpoint.read_pieces(folder / of).parts}


@pytest.mark.parametrize("rule", ["fedsteer", "fedvarp", "scaffold"])
@pytest.mark.parametrize("place", [0.05, 0.5, 1.0])
def test_a_run_with_a_damaged_checkpoint_equals_an_unbroken_one(
    rule: str, place: float, said: Any, tmp_path: Path
) -> None:
    whole = run(tmp_path / "whole", 6, rule)
    folder = tmp_path / "run"
    run(folder, 4, rule)
    flip(folder / CHECKPOINT, place)
    np.testing.assert_array_equal(run(folder, 6, rule), whole)
    assert_same(folder, tmp_path / "whole")
    (warning,) = [line for line in said() if "checkpoint" in line]
    assert warning.startswith(f"fedsteer: {folder / CHECKPOINT}")
    assert warning.endswith("; the checkpoint before it is used, and 1 round is repeated")


def test_parts_of_the_newer_one_alone_cost_a_round(said: Any, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 6)
    folder = tmp_path / "run"
    run(folder, 4)
    own = pieces(folder, CHECKPOINT) - pieces(folder, BEFORE)
    assert len(own) > 2
    for file in own:
        flip(file)
    np.testing.assert_array_equal(run(folder, 6), whole)
    assert_same(folder, tmp_path / "whole")
    assert sum("1 round is repeated" in line for line in said()) == 1


@pytest.mark.parametrize("every", [2, 3])
def test_rounds_between_checkpoints_are_counted(every: int, said: Any, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 8, checkpoint_every=every)
    folder = tmp_path / "run"
    run(folder, 2 * every, checkpoint_every=every)
    flip(folder / CHECKPOINT)
    np.testing.assert_array_equal(run(folder, 8, checkpoint_every=every), whole)
    assert_same(folder, tmp_path / "whole")
    assert sum(f"{every} rounds are repeated" in line for line in said()) == 1


def lone_column(folder: Path) -> int:
    """A column that both checkpoints have in the same file."""
    columns = [read_checkpoint(folder / name)[0][COLUMNS] for name in (CHECKPOINT, BEFORE)]
    same = [np.array_equal(*pair) for pair in zip(*columns, strict=True)]
    assert True in same and columns[0][same.index(True)].any()
    return same.index(True)


def test_a_damaged_column_is_dropped_and_the_rest_resumes(said: Any, tmp_path: Path) -> None:
    run(tmp_path, 3)
    column = lone_column(tmp_path)
    file = part(tmp_path, COLUMNS, column)
    flip(file)
    before = (tmp_path / "rounds.jsonl").read_bytes()
    strategy = strategy_of("fedsteer", tmp_path)
    strategy.run.begin(arrays(**FIRST))
    own = strategy.run.state.memory.own
    assert not own.columns.gram[column].any() and not own.columns.rows[column].any()
    assert own.columns.owners[column] is not None, "its owner fills it again"
    assert not own.coordinates.sums[:, column].any()
    slots = np.arange(len(own.coordinates.stored.values))
    assert not own.coordinates.read(slots)[:, column].any()
    assert own.coordinates.read(slots)[:, 1 - column].any(), "the others keep theirs"
    strategy.run.store.close()
    run(tmp_path, 8)
    assert (tmp_path / "rounds.jsonl").read_bytes().startswith(before), "no round is repeated"
    assert [row["round"] for row in Run(tmp_path).rounds] == list(range(1, 9))
    assert f"fedsteer: {file}, a part of a checkpoint, is damaged" in said()
    assert f"fedsteer: rows [{column}] of {COLUMNS} begin anew" in said()
    assert read_checkpoint(tmp_path / CHECKPOINT)[0][COLUMNS].any()


def test_the_first_model_is_needed_only_in_a_warm_up(said: Any, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 6)
    run(tmp_path / "run", 4)
    flip(part(tmp_path / "run", "initial"))
    np.testing.assert_array_equal(run(tmp_path / "run", 6), whole)
    assert_same(tmp_path / "run", tmp_path / "whole")
    assert any("a part of a checkpoint, is damaged" in line for line in said())
    run(tmp_path / "run", 7)  # the checkpoint is whole again
    warm_up = {"select": "search", "cycles": 9, "population": {c: 10 for c in range(4)}}
    run(tmp_path / "warm-up", 3, **warm_up)
    flip(part(tmp_path / "warm-up", "initial"))
    with pytest.raises(DataError, match="fedsteer cannot go on without initial"):
        run(tmp_path / "warm-up", 4, **warm_up)


@pytest.mark.parametrize("name", ["model", "rule/state.own.store.rows"])
def test_what_the_rule_needs_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    run(tmp_path, 3, "fedvarp")
    for of in (CHECKPOINT, BEFORE):
        row = 1 if name.endswith("rows") else None
        file = part(tmp_path, name, row, of)
        if file.exists():  # both may have the same one
            file.unlink()
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.*")}
    for _ in range(2):  # asking twice does not help
        inner = name.removeprefix("rule/")
        with pytest.raises(DataError, match=f"fedvarp cannot go on without {inner}") as caught:
            run(tmp_path, 4, "fedvarp")
        assert "a part of a checkpoint, is missing" in str(caught.value)
        assert str(caught.value).endswith(REMEDY.format(tmp_path))
        assert "\n" not in str(caught.value)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.*")} == before


def test_both_damaged_are_refused_in_one_line(tmp_path: Path) -> None:
    run(tmp_path, 3)
    flip(tmp_path / CHECKPOINT, 1.0)
    flip(tmp_path / BEFORE, 1.0)
    with pytest.raises(DataError) as caught:
        run(tmp_path, 4)
    problem = "is damaged: its checksum does not match"
    files = f"{tmp_path / CHECKPOINT} {problem}; {tmp_path / BEFORE} {problem}"
    assert str(caught.value) == f"{files}; {REMEDY.format(tmp_path)}"
    run(tmp_path, 1, resume=False)
    assert read_checkpoint(tmp_path / BEFORE)[1]["run"]["number"] == 0, "of the new run"


@pytest.mark.parametrize("stream", ["rounds", "clients", "timing"])
def test_zeros_at_the_end_of_rows_are_cut_off(stream: str, said: Any, tmp_path: Path) -> None:
    """With a line end after them, too: blocks of a file may reach the disk in any order."""
    whole = run(tmp_path / "whole", 6)
    folder = tmp_path / "run"
    run(folder, 4)
    with (folder / f"{stream}.jsonl").open("ab") as file:
        file.write(bytes(300) + b'}\n{"round":99}\n')
    np.testing.assert_array_equal(run(folder, 6), whole)
    assert_same(folder, tmp_path / "whole")
    assert Run(folder).rows("timing")[-1]["round"] == 6
    assert not [line for line in said() if "checkpoint" in line]


def test_zeros_among_rows_are_refused_in_one_line(tmp_path: Path) -> None:
    run(tmp_path, 4)
    path = tmp_path / "clients.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:30] + bytes(20) + whole[50:])
    with pytest.raises(DataError, match=f"{path} is damaged: its rows are not") as caught:
        run(tmp_path, 5)
    assert "\n" not in str(caught.value) and REMEDY.format(tmp_path) in str(caught.value)


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    """Nothing is written, also if the right one before it is there."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    run(ours, 3)
    run(theirs, 3, seed=7)
    shutil.copy(theirs / CHECKPOINT, ours / CHECKPOINT)
    before = {file: file.read_bytes() for file in ours.rglob("*.*")}
    with pytest.raises(ConfigurationError, match=r"holds a checkpoint with seed = 7, not 0"):
        run(ours, 4)
    assert {file: file.read_bytes() for file in ours.rglob("*.*")} == before


def test_the_checkpoint_of_a_run_with_the_same_options_is_not_used(
    said: Any, tmp_path: Path
) -> None:
    """Its clients were others: the rows say so."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    whole = run(tmp_path / "whole", 5)
    run(ours, 3)
    run(theirs, 2)
    rows = theirs / "clients.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b"client-1", b"client-9"))
    stored, meta = read_checkpoint(theirs / CHECKPOINT)
    meta["sums"] = dict.fromkeys(meta["sums"], 1)
    write_checkpoint(ours / CHECKPOINT, stored, meta)
    np.testing.assert_array_equal(run(ours, 5), whole)
    assert any("its rows are not those that checkpoint.safetensors" in line for line in said())
