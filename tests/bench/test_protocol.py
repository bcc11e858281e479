"""The talk between a worker and whoever measures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsteer.bench.processes import Worker, WorkerFailed
from fedsteer.bench.protocol import Gate
from fedsteer.bench.sides import SIDES, Side, Variant
from fedsteer.bench.work import make_work, save_work
from tests.bench.tiny import TINY


class Script:
    """A channel with its commands given beforehand."""

    def __init__(self, *commands: str) -> None:
        self.commands, self.answers = list(commands), []  # type: ignore[var-annotated]

    def receive(self) -> list[str]:
        return self.commands.pop(0).split()

    def send(self, **answer: Any) -> None:
        self.answers.append(answer)


def test_rounds_come_in_the_blocks_asked_for(tmp_path: Path) -> None:
    done = 0
    path = tmp_path / "some weights.npy"
    script = Script("rounds 2", "rounds 3", f"weights {path}", "end")
    settled: list[int] = []
    gate = Gate(
        script,  # type: ignore[arg-type]
        lambda: np.array([done], np.float32),
        settle=lambda: settled.append(done),
        version="any 1",
    )
    while gate.next_round():
        done += 1
    assert done == 5 and settled == [2, 5]
    assert [list(answer) for answer in script.answers] == [
        ["ready", "version"],
        ["seconds"],
        ["seconds"],
        ["saved"],
    ]
    assert np.load(path).tolist() == [5.0]


def test_processes_without_a_channel_hear_from_the_first() -> None:
    told = iter([3, 0])
    gate = Gate(None, lambda: np.zeros(1, np.float32), share=lambda count: next(told))
    done = 0
    while gate.next_round():
        done += 1
    assert done == 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_work(make_work(TINY["a"]), tmp_path)
    return tmp_path


def test_a_worker_process_answers(folder: Path) -> None:
    worker = Worker(SIDES["plain"], Variant("1 thread", 1), folder, sys.executable)
    try:
        assert worker.facts["version"].startswith("torch ")
        before = worker.weights()
        assert worker.rounds(2) > 0
        assert (worker.weights() != before).any()
    finally:
        worker.close()
    assert worker.process.returncode == 0


def test_a_worker_that_dies_is_quoted(folder: Path) -> None:
    absent = Side("absent", "nobody", ())
    with pytest.raises(WorkerFailed, match=r"nobody \(1 thread\) died: .*sides\.absent"):
        Worker(absent, Variant("1 thread", 1), folder, sys.executable)


def test_a_worker_that_does_not_answer_is_ended(folder: Path, tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    mute.chmod(0o755)
    with pytest.raises(WorkerFailed, match="did not answer for 0 s: it printed nothing"):
        Worker(SIDES["plain"], Variant("1 thread", 1), folder, str(mute), patience=0.2)


def test_the_launcher_is_used_for_processes_only(folder: Path) -> None:
    worker = object.__new__(Worker)
    worker.side, worker.folder, worker.python = SIDES["pfl"], folder, "python"
    worker.variant = Variant("2 processes", 1, 2)
    assert "--nproc-per-node=2" in worker._command()
    worker.variant = Variant("2 threads", 2)
    assert worker._command()[:4] == ["python", "-m", "fedsteer.bench.worker", "pfl"]
