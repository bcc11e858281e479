"""Files of a run on their way: whole at the other end, whatever happens in between."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsteer.errors import ConfigurationError
from fedsteer.records import Run
from fedsteer.records.names import BEFORE, CHECKPOINT, FAILURE
from fedsteer.simulate.cells import plan_cells
from fedsteer.simulate.executors import task as tasks
from fedsteer.simulate.executors.task import Task, carry_out, pack, unpack
from fedsteer.simulate.runner import run_cell
from tests.simulate.small import cell_of, exact_files, run_small, small, stopped_run


def test_a_run_resumes_from_a_parcel_as_if_it_had_never_moved(tmp_path: Path) -> None:
    stopped_run(tmp_path / "there", after=3)
    assert not Run(tmp_path / "there").finished
    unpack(pack(tmp_path / "there"), tmp_path / "here")
    run_small(tmp_path / "here", "fedsteer", resume=True)
    run_small(tmp_path / "whole", "fedsteer")
    assert exact_files(tmp_path / "here") == exact_files(tmp_path / "whole")


def test_a_finished_run_arrives_whole_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    stopped_run(tmp_path / "here", after=3)
    run_small(tmp_path / "there", "fedsteer")
    unpack(pack(tmp_path / "there"), tmp_path / "here")
    files = [{path.name for path in (tmp_path / name).iterdir()} for name in ("here", "there")]
    assert files[0] == files[1] and "model.safetensors" in files[0]


@pytest.mark.parametrize("moment", [CHECKPOINT, "rounds.jsonl"])
def test_a_run_that_continues_while_it_is_packed_does_no_harm(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_run(tmp_path / "there", after=3)
    stopped_run(tmp_path / "later", after=5)
    with (tmp_path / "later" / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round":99')
    read = np.fromfile

    def read_while_it_continues(path: Path, kind: type) -> NDArray[np.uint8]:
        content = read(path, kind)
        if path.name == moment:
            shutil.copytree(tmp_path / "later", tmp_path / "there", dirs_exist_ok=True)
        return content

    monkeypatch.setattr(tasks.np, "fromfile", read_while_it_continues)
    parcel = pack(tmp_path / "there")
    monkeypatch.undo()
    unpack(parcel, tmp_path / "here")
    run_small(tmp_path / "here", "fedsteer", resume=True)
    run_small(tmp_path / "whole", "fedsteer")
    assert exact_files(tmp_path / "here") == exact_files(tmp_path / "whole")


def test_a_kill_while_unpacking_never_leaves_a_broken_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_run(tmp_path / "here", after=3)
    run_small(tmp_path / "whole", "fedsteer")
    parcel = pack(tmp_path / "whole")
    write = tasks.write_atomically
    for survives in range(len(parcel)):
        written = 0

        def dies(path: Path, content: memoryview, last: int = survives) -> None:
            nonlocal written
            if written == last:
                raise OSError("killed")
            written += 1
            write(path, content)

        monkeypatch.setattr(tasks, "write_atomically", dies)
        with pytest.raises(OSError, match="killed"):
            unpack(parcel, tmp_path / "here")
        assert not Run(tmp_path / "here").finished
        copy = tmp_path / f"copy-{survives}"
        monkeypatch.setattr(tasks, "write_atomically", write)
        unpack(pack(tmp_path / "here"), copy)
        run_small(copy, "fedsteer", resume=True)
        assert exact_files(copy) == exact_files(tmp_path / "whole")


def test_a_reason_to_fail_that_is_gone_goes(tmp_path: Path) -> None:
    stopped_run(tmp_path / "there", after=3)
    here = tmp_path / "here"
    here.mkdir()
    (here / FAILURE).write_text('{"reason": "an earlier one"}')
    unpack(pack(tmp_path / "there"), here)
    assert Run(here).failure is None and (here / CHECKPOINT).exists()


def test_threads_chosen_elsewhere_are_no_other_experiment(tmp_path: Path) -> None:
    experiment = small()
    cell = cell_of(experiment, "fedavg", tmp_path)
    run = run_cell(replace(cell, torch_threads=3))
    assert run.manifest["engine"]["threads"] == 3
    assert run.manifest["experiment"]["run"]["threads"] == 0
    assert run_cell(cell, resume=True).finished


def test_a_damaged_run_comes_home_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = SimpleNamespace(watch=lambda progress: None, stopping=False)
    monkeypatch.setattr(tasks, "Correspondent", lambda *given: quiet)
    cell = plan_cells(small(), ["fedavg"], tmp_path)[0]
    stopped_run(cell.folder, after=5, entry="fedavg")
    for damaged, name in enumerate((CHECKPOINT, BEFORE), start=1):
        (cell.folder / name).write_bytes(b"torn")
        task = Task(attempt=1, cell=cell, parcel=pack(cell.folder), send_every=20.0)
        parcel, stopped = carry_out(task, None)
        assert not stopped and (FAILURE in parcel) == (damaged == 2)
    unpack(parcel, cell.folder)
    words = f"{cell.folder / CHECKPOINT} is not a checkpoint of fedsteer"
    assert str(Run(cell.folder).failure).startswith(words)


def test_a_machine_with_another_fedsteer_says_so(tmp_path: Path) -> None:
    cell = plan_cells(small(), ["fedavg"], tmp_path)[0]
    task = Task(
        attempt=1,
        cell=cell,
        parcel=None,
        send_every=20.0,
        version="0.0.1",
    )
    with pytest.raises(ConfigurationError, match=r"the runs need 0\.0\.1"):
        carry_out(task, None)
