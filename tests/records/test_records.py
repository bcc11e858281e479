"""Writing rows, rewinding, and reading runs."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsteer.errors import DataError, StateError
from fedsteer.records import RecordWriter, Run, find_runs, write_checkpoint
from fedsteer.records.names import CHECKPOINT
from fedsteer.records.trackers import SCALARS, tensorboard_tracker


def test_rows_come_back_without_empty_values(tmp_path: Path) -> None:
    with closing(RecordWriter(tmp_path / "run")) as records:
        records.manifest({"seed": 3}, library="1.0")
        records.append("rounds", {"round": 1, "loss": float("nan"), "condition": None, "x": 0.0})
        records.append("clients", {"round": 1, "client": np.int64(4), "weight": np.float64(0.5)})
        records.finish({"accuracy": 0.5})
    run = Run(tmp_path / "run")
    assert run.manifest["seed"] == 3
    assert {"format", "version", "environment", "created"} <= run.manifest.keys()
    assert run.manifest["environment"]["library"] == "1.0"
    assert run.rounds == [{"round": 1, "x": 0.0}]
    assert run.rows("clients") == [{"round": 1, "client": 4, "weight": 0.5}]
    assert run.rows("timing") == [] and run.arrays == {}
    assert run.finished and run.result == {"accuracy": 0.5}


def test_going_back_to_a_checkpoint(tmp_path: Path) -> None:
    with closing(RecordWriter(tmp_path)) as records:
        records.append("rounds", {"round": 1})
        offsets = records.flush()
        records.append("rounds", {"round": 2})
        records.append("timing", {"round": 2})
    assert offsets == {"rounds": 12, "clients": 0, "timing": 0}
    with closing(RecordWriter(tmp_path)) as records:
        records.rewind(offsets)
        records.append("rounds", {"round": 3})
    assert (tmp_path / "rounds.jsonl").read_text() == '{"round":1}\n{"round":3}\n'
    assert (tmp_path / "timing.jsonl").read_text() == ""
    with closing(RecordWriter(tmp_path)) as records, pytest.raises(DataError, match="shorter"):
        records.rewind({"rounds": 10_000, "clients": 0, "timing": 0})
    assert len((tmp_path / "rounds.jsonl").read_bytes()) == 24, "a refused rewind writes nothing"


def test_a_checkpoint_knows_its_rows_and_its_time(tmp_path: Path) -> None:
    with closing(RecordWriter(tmp_path)) as records:
        assert records.load() is None
        records.append("rounds", {"round": 1})
        records._began -= 100.0
        records.save({"model": np.arange(3)}, {"number": 1})
        records.append("rounds", {"round": 2})
    with closing(RecordWriter(tmp_path)) as records:
        found = records.load()
        assert found is not None and found.run == {"number": 1}
        assert found.arrays["model"].tolist() == [0, 1, 2] and 100 <= records.seconds < 200
        records.rewind(found.offsets)
    assert (tmp_path / "rounds.jsonl").read_text() == '{"round":1}\n'


def test_checkpoints_of_older_versions_are_refused(tmp_path: Path) -> None:
    """The simulator called its part "simulation"; Flower kept everything at the top."""
    offsets = {"rounds": 0, "clients": 0, "timing": 0}
    for old in ({"simulation": {"number": 3}}, {"number": 3, "identities": {}}):
        meta = {"offsets": offsets, "seconds": 1.0} | old
        write_checkpoint(tmp_path / CHECKPOINT, {}, meta)
        with (
            closing(RecordWriter(tmp_path)) as records,
            pytest.raises(StateError, match="is from another version of fedsteer"),
        ):
            records.load()


@pytest.mark.parametrize(
    ("content", "line"),
    [(b'{"a":1}\nhello\n{"a":2}\n', 2), (b"3\n", 1), (b'{"a":1}\n\n', 2), (b"\xff\xfe\n", 1)],
)
def test_a_damaged_row_is_named(tmp_path: Path, content: bytes, line: int) -> None:
    (tmp_path / "rounds.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=rf"rounds\.jsonl, line {line}, is not a JSON row"):
        _ = Run(tmp_path).rounds


def test_an_unfinished_row_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text('{"round":1}\n{"round":2}\n{"rou')
    assert Run(tmp_path).rounds == [{"round": 1}, {"round": 2}]
    assert not Run(tmp_path).finished and Run(tmp_path).result is None


def test_a_run_that_ends_while_it_is_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rounds.jsonl").write_text('{"round":1}\n')
    read = Run.rows

    def late(self: Run, stream: str) -> list[dict[str, Any]]:
        rows = read(self, stream)
        (tmp_path / "result.json").write_text('{"finished": true, "rounds": 2}')
        return rows

    monkeypatch.setattr(Run, "rows", late)
    assert Run(tmp_path).rounds == [{"round": 1}]
    with pytest.raises(DataError, match="1 rows of a run of 2 rounds"):
        _ = Run(tmp_path).rounds


def test_runs_are_found_below_folders(tmp_path: Path) -> None:
    for name in ("b/seed-0", "a/seed-1", "a/seed-0"):
        with closing(RecordWriter(tmp_path / name)) as records:
            records.manifest({})
    found = [run.folder.relative_to(tmp_path).as_posix() for run in find_runs(tmp_path)]
    assert found == ["a/seed-0", "a/seed-1", "b/seed-0"]
    assert len(find_runs(tmp_path / "b", tmp_path / "a" / "seed-0")) == 2
    with pytest.raises(DataError, match="does not exist"):
        find_runs(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no runs \(no manifest\.json below it\)"):
        find_runs(tmp_path / "empty")


def test_pandas_reads_rows_in_one_line(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    with closing(RecordWriter(tmp_path)) as records:
        for number in range(1, 4):
            records.append("rounds", {"round": number, "phase": "train", "loss": 1 / number})
    table = pandas.read_json(tmp_path / "rounds.jsonl", lines=True)
    assert table["round"].tolist() == [1, 2, 3]
    np.testing.assert_allclose(table["loss"], [1, 1 / 2, 1 / 3], atol=1e-9)


def test_tensorboard_gets_an_event_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    track = tensorboard_tracker(tmp_path)
    row = {"round": 1, "accuracy": 0.5, "active": 3, "loss": None, "group_accuracy": {"rare": 0.1}}
    track(row)
    track({"round": 2, "active": 4})
    (events,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    content = events.read_bytes()
    assert b"accuracy" in content and b"accuracy/rare" in content and b"active" in content
    assert b"train_loss" not in content
    assert set(row) & set(SCALARS) == {"accuracy", "active", "loss"}


def test_a_round_that_is_run_again_counts_once(tmp_path: Path) -> None:
    """Rounds after the last checkpoint are run again after a kill."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for rounds in ((1, 2, 3, 4), (3, 4, 5)):
        track = tensorboard_tracker(tmp_path)
        for number in rounds:
            track({"round": number, "active": 3})
    read = events.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [scalar.step for scalar in read.Scalars("active")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({}, "manifest.json does not say what was run"),
        ({"format": 9, "seed": 1}, "manifest.json has format 9, this release reads 1"),
    ],
)
def test_empty_and_newer_manifests_are_refused(tmp_path: Path, manifest: Any, words: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=words):
        _ = Run(tmp_path).manifest


def test_a_finished_run_has_all_of_its_rounds(tmp_path: Path) -> None:
    with closing(RecordWriter(tmp_path)) as records:
        records.manifest({"seed": 0})
        for number in range(1, 6):
            records.append("rounds", {"round": number})
        records.finish({"rounds": 4, "warm_up_rounds": 1})
    assert len(Run(tmp_path).rounds) == 5
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="4 rows of a run of 5 rounds"):
        _ = Run(tmp_path).rounds
