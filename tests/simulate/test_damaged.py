"""Damage in a run's folder: the run goes on from before it, or alone is left out."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedsteer.errors import DamagedRun, FedsteerError, StateError
from fedsteer.records import Run, read_checkpoint, write_checkpoint
from fedsteer.records.names import BEFORE, CHECKPOINT, MANIFEST, RESULT
from fedsteer.simulate.cells import plan_cells
from fedsteer.simulate.compare import compare_cells
from tests.simulate.small import compare_small, exact_files, run_small, small, stopped_run

REMEDY = "restore {} from a copy, or remove it to start over"


def spoil(path: Path, region: str) -> None:
    """One bit of the header, of an array, or of the end; or a part of the file."""
    whole = bytearray(path.read_bytes())
    half = len(whole) // 2
    if region in ("header", "middle", "end"):
        place = {"header": 100, "middle": half, "end": len(whole) - 2}[region]
        whole[place] ^= 1
    elif region == "cut":
        del whole[half:]
    else:
        assert region == "zero tail"
        whole[half:] = bytes(len(whole) - half)
    path.write_bytes(whole)


@pytest.mark.parametrize("region", ["header", "middle", "end", "cut", "zero tail"])
@pytest.mark.parametrize("entry", ["fedsteer", "scaffold"])
def test_a_run_with_a_damaged_checkpoint_equals_an_unbroken_one(
    entry: str, region: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_small(tmp_path / "whole", entry)
    folder = tmp_path / "run"
    stopped_run(folder, 5, entry)
    spoil(folder / CHECKPOINT, region)
    assert run_small(folder, entry, resume=True).finished
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"fedsteer: {folder / CHECKPOINT}") and "\n" not in said
    assert said.endswith("; the checkpoint before it is used, and 1 round is repeated")
    assert exact_files(folder) == exact_files(tmp_path / "whole")
    left = {path.name for path in folder.iterdir()}
    assert left == {path.name for path in (tmp_path / "whole").iterdir()}


def test_a_kill_before_the_next_checkpoint_changes_nothing(tmp_path: Path) -> None:
    """The rows are cut back, the damaged checkpoint is still there, and the older one too."""
    run_small(tmp_path / "whole", "fedavg")
    folder = tmp_path / "run"
    stopped_run(folder, 5, "fedavg")
    spoil(folder / CHECKPOINT, "middle")
    shutil.copytree(folder, tmp_path / "copy")
    stopped_run(folder, 1, "fedavg")  # ends with a checkpoint, which counts here as none
    for name in (CHECKPOINT, BEFORE):
        shutil.copy(tmp_path / "copy" / name, folder / name)
    run_small(folder, "fedavg", resume=True)
    assert exact_files(folder) == exact_files(tmp_path / "whole")


def test_without_damage_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped_run(tmp_path, 5, "fedavg")
    assert (tmp_path / BEFORE).exists()
    assert run_small(tmp_path, "fedavg", resume=True).finished
    assert not caplog.records


@pytest.mark.parametrize("stream", ["rounds", "clients"])
@pytest.mark.parametrize("after", [4, 5])
def test_zeros_at_the_end_of_rows(
    after: int, stream: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After the last checkpoint, or only after the one before it."""
    run_small(tmp_path / "whole", "fedavg")
    folder = tmp_path / "run"
    stopped_run(folder, 5, "fedavg")
    path = folder / f"{stream}.jsonl"
    if after == 5:
        with path.open("ab") as file:
            file.write(bytes(500))
    else:
        whole = path.read_bytes()
        path.write_bytes(whole[:-20] + bytes(20))
    assert run_small(folder, "fedavg", resume=True).finished
    assert ("1 round is repeated" in caplog.text) == (after == 4)
    assert exact_files(folder) == exact_files(tmp_path / "whole")


@pytest.mark.parametrize("stream", ["rounds", "clients"])
def test_zeros_among_rows_are_refused_in_one_line(stream: str, tmp_path: Path) -> None:
    stopped_run(tmp_path, 5, "fedavg")
    path = tmp_path / f"{stream}.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes(10) + whole[50:])
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DamagedRun) as caught:
        run_small(tmp_path, "fedavg", resume=True)
    said = str(caught.value)
    assert said.startswith(f"{path} is damaged: its rows are not those that {CHECKPOINT} was")
    assert said.endswith(REMEDY.format(tmp_path)) and "\n" not in said
    assert files == {path: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("entry", "seed", "settings", "word"),
    [
        ("fedavg", 1, {}, r"another seed \(1, now 0\)"),
        ("fedprox", 0, {}, r"another rule\."),
        ("fedavg:practical", 0, {}, r"another rule\."),
        ("fedavg", 0, {"training__rate": 0.05}, r"another experiment.training.rate"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(
    entry: str, seed: int, settings: dict[str, Any], word: str, tmp_path: Path
) -> None:
    """Even beside the right one before it: somebody copied the wrong file."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    stopped_run(ours, 5, "fedavg")
    stopped_run(theirs, 5, entry, seed=seed, **settings)
    shutil.copy(theirs / CHECKPOINT, ours / CHECKPOINT)
    files = {path: path.read_bytes() for path in ours.iterdir()}
    with pytest.raises(DamagedRun, match=word) as caught:
        run_small(ours, "fedavg", resume=True)
    assert str(caught.value).startswith(f"{ours / CHECKPOINT} ") and "\n" not in str(caught.value)
    assert str(caught.value).endswith(REMEDY.format(ours))
    assert files == {path: path.read_bytes() for path in ours.iterdir()}


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    stopped_run(tmp_path, 5, "fedavg")
    arrays, meta = read_checkpoint(tmp_path / CHECKPOINT)
    meta["run"]["identity"]["data"]["checksums"] = {"made": "other"}
    write_checkpoint(tmp_path / CHECKPOINT, arrays, meta)
    with pytest.raises(DamagedRun, match=r"was started with other data \(checksums\)"):
        run_small(tmp_path, "fedavg", resume=True)


def test_a_checkpoint_that_does_not_say_whose_it_is(tmp_path: Path) -> None:
    stopped_run(tmp_path, 5, "fedavg")
    arrays, meta = read_checkpoint(tmp_path / CHECKPOINT)
    del meta["run"]["identity"]
    write_checkpoint(tmp_path / CHECKPOINT, arrays, meta)
    with pytest.raises(DamagedRun, match="is not a checkpoint of the simulator"):
        run_small(tmp_path, "fedavg", resume=True)
    del meta["sums"]  # as in the last version
    write_checkpoint(tmp_path / CHECKPOINT, arrays, meta)
    with pytest.raises(StateError, match="is from another version of fedsteer"):
        run_small(tmp_path, "fedavg", resume=True)


def test_a_manifest_with_impossible_options_is_named(tmp_path: Path) -> None:
    stopped_run(tmp_path, 5, "fedsteer")
    path = tmp_path / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["rule"]["preset_options"] = {"nonsense": 1}
    path.write_text(json.dumps(manifest))
    with pytest.raises(FedsteerError, match=f"^{path}: ") as caught:
        run_small(tmp_path, "fedsteer", resume=True)
    assert "\n" not in str(caught.value)


def damage_of(folder: Path, how: str) -> str:
    """Damage a run so that it cannot go on; a word of what is said about it."""
    if how == "checkpoints":
        for name in (CHECKPOINT, BEFORE):
            spoil(folder / name, "end")
        return "its checksum does not match"
    name = MANIFEST if how == "manifest" else RESULT
    (folder / name).write_bytes(bytes(200))
    return f"{name} is not a JSON object: "


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("how", ["checkpoints", "manifest", "result"])
def test_a_damaged_run_stops_no_other(how: str, jobs: int, tmp_path: Path) -> None:
    cells = plan_cells(small({"seeds": 1}), ["fedavg", "mifa", "fedprox"], tmp_path)
    stopped_run(cells[0].folder, 5, "fedavg")
    word = damage_of(cells[0].folder, how)
    told: list[str] = []
    bad, *good = compare_cells(
        cells, jobs=jobs, resume=True, report=lambda cell, progress: told.append(cell.rule.label)
    )
    assert all(run.finished for run in good) and set(told) >= {"mifa", "fedprox"}
    failure = str(bad.failure)
    assert word in failure and failure.endswith(REMEDY.format(bad.folder))
    assert "\n" not in failure
    shutil.rmtree(bad.folder)  # as it says
    compare_small(tmp_path, ["fedavg"], resume=True, seeds=1)
    assert Run(bad.folder).finished and Run(bad.folder).failure is None


def test_a_warning_of_a_run_in_a_process_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cells = plan_cells(small({"seeds": 1}), ["fedavg", "mifa"], tmp_path)
    stopped_run(cells[0].folder, 5, "fedavg")
    spoil(cells[0].folder / CHECKPOINT, "middle")
    compare_cells(cells, jobs=2, resume=True)
    assert "1 round is repeated" in capfd.readouterr().err
    assert logging.getLogger("fedsteer").level == logging.NOTSET


def test_checkpoints_that_a_killed_run_left_beside_its_result_go(tmp_path: Path) -> None:
    """They are large, and of no use."""
    run_small(tmp_path / "run", "fedavg")
    files = {path.name for path in (tmp_path / "run").iterdir()}
    stopped_run(tmp_path / "stopped", 5, "fedavg")
    for name in (CHECKPOINT, BEFORE):
        shutil.copy(tmp_path / "stopped" / name, tmp_path / "run" / name)
    assert run_small(tmp_path / "run", "fedavg", resume=True).finished
    assert {path.name for path in (tmp_path / "run").iterdir()} == files
