"""A run on disk: the same bytes every time, however often it was interrupted."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsteer
from fedsteer.errors import ConfigurationError, DataError, FedsteerError
from fedsteer.records import RecordWriter, Run, read_checkpoint
from fedsteer.records.names import BEFORE, CHECKPOINT, MODEL
from fedsteer.rules import RULES
from fedsteer.simulate import runner
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.runner import Interrupted, Progress, run_cell
from fedsteer.simulate.world import World, build_world
from fedsteer.steering.state import VERSION
from tests.simulate.small import cell_of, exact_files, killed, run_small, small

KILLED = ("fedsteer", "fedvarp", "scaffold")


@pytest.mark.parametrize("entry", [*RULES, "fedsteer:practical", "full"])
def test_two_runs_are_the_same_to_the_bit(entry: str, tmp_path: Path) -> None:
    run_small(tmp_path / "one", entry)
    run_small(tmp_path / "other", entry)
    assert exact_files(tmp_path / "one") == exact_files(tmp_path / "other")
    run_small(tmp_path / "seed", entry, seed=1)
    assert exact_files(tmp_path / "seed")["model"] != exact_files(tmp_path / "one")["model"]


def test_how_often_checkpoints_are_taken_changes_nothing(tmp_path: Path) -> None:
    run_small(tmp_path / "often", "fedsteer", run__checkpoint_every=1)
    run_small(tmp_path / "never", "fedsteer", run__checkpoint_every=1000)
    assert exact_files(tmp_path / "often") == exact_files(tmp_path / "never")


def test_the_files_of_a_run(tmp_path: Path) -> None:
    run = run_small(tmp_path / "run", "fedsteer")
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "arrays.safetensors",
        "clients.jsonl",
        "manifest.json",
        "model.safetensors",
        "result.json",
        "rounds.jsonl",
        "timing.jsonl",
    ]
    manifest = run.manifest
    assert manifest["version"] == fedsteer.__version__ and manifest["seed"] == 0
    assert manifest["rule"] == {
        "label": "fedsteer",
        "name": "fedsteer",
        "preset": "paper",
        "options": {"core_size": 3, "cycles": 1},
        "preset_options": {},
    }
    assert manifest["experiment"]["run"]["rounds"] == 6
    assert manifest["engine"] == {"name": "batched", "device": "cpu", "threads": 1}
    assert list(manifest["data"]["checksums"]) == ["made"]
    assert manifest["clients"]["count"] == len(manifest["clients"]["probabilities"]) == 12
    assert np.sum(manifest["clients"]["holds"]) == np.sum(manifest["clients"]["sizes"])
    assert manifest["dim"] == len(read_checkpoint(run.folder / MODEL)[0]["model"])
    assert len(run.rounds) == len(run.rows("timing")) == 6 + run.result["warm_up_rounds"]  # type: ignore[index]
    assert len(run.rows("clients")) == run.result["uploads"]  # type: ignore[index]
    assert run.arrays["coordinates"].shape == (6, 2, 3)
    assert run.arrays["watched"].tolist() == [1, 5]


def test_a_tracker_gets_the_rows_of_the_records_and_their_times(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    run = run_cell(cell_of(small(), "fedsteer", tmp_path), trackers=[told.append])
    rows = zip(run.rounds, run.rows("timing"), strict=True)
    assert told == [row | timing for row, timing in rows]
    assert json.loads(json.dumps(told)) == told
    times = [datetime.fromisoformat(row["time"]) for row in told]
    assert times == sorted(times) and times[0].utcoffset() == timedelta(0)


def stop_at(folder: Path, entry: str, number: int, **settings: Any) -> None:
    """Run until Ctrl-C in round `number`."""
    experiment = small(settings)

    def watch(progress: Progress) -> None:
        if progress["round"] == number:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        run_cell(cell_of(experiment, entry, folder), resume=True, watch=watch)


def test_what_an_engine_keeps_between_rounds_changes_no_bit(tmp_path: Path) -> None:
    wide = {"data.options": {"points": 400, "side": 16}, "partition.points": 20}  # the dense path
    dotted = {key.replace(".", "__"): value for key, value in wide.items()}
    whole = run_small(tmp_path / "whole", **dotted)
    for number in (1, 3, 4):
        stop_at(tmp_path / "stopped", "fedavg", number, **wide)
    run_small(tmp_path / "stopped", resume=True, **dotted)
    assert exact_files(tmp_path / "stopped") == exact_files(whole.folder)


@pytest.mark.parametrize("entry", KILLED)
def test_a_polite_stop_after_every_round(entry: str, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    whole = run_small(tmp_path / "whole", entry)
    folder = tmp_path / "stopped"
    for number in range(1, len(whole.rounds) + 1):
        stop_at(folder, entry, number)
        assert len(Run(folder).rounds) == number
        assert not Run(folder).finished
    run = run_small(folder, entry, resume=True)
    assert exact_files(folder) == exact_files(whole.folder)
    ours, theirs = dict(run.result or {}), dict(whole.result or {})
    assert ours.pop("seconds") > 0 and theirs.pop("seconds") > 0
    assert ours == theirs
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    experiment = small()

    def watch(progress: Progress) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_cell(cell_of(experiment, "fedavg", tmp_path / "run"), watch=watch)


def test_a_run_in_a_thread_leaves_signals_alone(tmp_path: Path) -> None:
    done: list[Run] = []
    thread = threading.Thread(target=lambda: done.append(run_small(tmp_path / "run")))
    thread.start()
    thread.join()
    assert done and done[0].finished


def kill_until_finished(folder: Path, entry: str, seed: int, longest: float) -> int:
    """SIGKILL again and again; later and later, so that there is an end."""
    draw, kills = random.Random(seed), 0
    while killed(folder, entry, draw.uniform(0, longest * 1.2**kills)):
        kills += 1
    return kills


@pytest.mark.parametrize("entry", KILLED)
def test_sigkill_at_any_moment(entry: str, tmp_path: Path) -> None:
    run_small(tmp_path / "whole", entry)
    kills = kill_until_finished(tmp_path / "killed", entry, seed=1, longest=0.15)
    assert kills
    assert exact_files(tmp_path / "killed") == exact_files(tmp_path / "whole")
    assert not list((tmp_path / "killed").glob("*.new"))


@pytest.mark.slow
@pytest.mark.parametrize("entry", KILLED)
@pytest.mark.parametrize("seed", range(2, 12))
def test_sigkill_at_many_moments(entry: str, seed: int, tmp_path: Path) -> None:
    run_small(tmp_path / "whole", entry)
    kill_until_finished(tmp_path / "killed", entry, seed, longest=0.1)
    assert exact_files(tmp_path / "killed") == exact_files(tmp_path / "whole")


def test_what_was_written_after_the_checkpoint_is_cut_away(tmp_path: Path) -> None:
    run_small(tmp_path / "whole", "fedsteer")
    folder = tmp_path / "run"
    stop_at(folder, "fedsteer", 5)
    for name in ("rounds", "clients", "timing"):
        with (folder / f"{name}.jsonl").open("a") as file:
            file.write('{"round":6,"phase":"train"}\n{"round":7,"pha')
    run_small(folder, "fedsteer", resume=True)
    assert exact_files(folder) == exact_files(tmp_path / "whole")


def test_an_attempt_without_a_checkpoint_starts_over(tmp_path: Path) -> None:
    run_small(tmp_path / "whole")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    (folder / "rounds.jsonl").write_text('{"round":1}\n{"rou')
    run_small(folder)
    assert exact_files(folder) == exact_files(tmp_path / "whole")
    assert Run(folder).manifest["seed"] == 0


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "inner").mkdir()
    run_small(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine" and (tmp_path / "inner").is_dir()


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    run = run_small(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.folder.iterdir()}
    again = run_small(tmp_path / "run", resume=True)
    assert again.result == run.result
    assert {path: path.stat().st_mtime_ns for path in run.folder.iterdir()} == before
    with pytest.raises(ConfigurationError, match="already holds this run; --resume"):
        run_small(tmp_path / "run")


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("entry", "seed", "settings", "words"),
    [
        ("fedvarp", 0, {}, "another rule"),
        ("fedavg:practical", 0, {}, "another rule"),
        ("full", 0, {}, "another rule"),
        ("fedavg", 1, {}, "another seed"),
        ("fedavg", 0, {"training__rate": 0.2}, "another experiment"),
        ("fedavg", 0, {"run__rounds": 9}, "another experiment"),
        ("fedavg", 0, {"options__fedavg": {"norm_bound": 2.0}}, "another rule"),
        ("fedavg", 0, {"data__options__noise": 0.3}, "another experiment"),
    ],
)
def test_another_run_is_refused(
    finished: bool, entry: str, seed: int, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    if finished:
        run_small(folder)
    else:
        stop_at(folder, "fedavg", 2)
    before = (folder / "rounds.jsonl").read_bytes()
    for resume in (True, False):
        with pytest.raises(ConfigurationError, match=words):
            run_small(folder, entry, seed, resume=resume, **settings)
    assert (folder / "rounds.jsonl").read_bytes() == before


def test_what_says_nothing_about_the_numbers_may_differ(tmp_path: Path) -> None:
    run_small(tmp_path / "whole")
    stop_at(tmp_path / "run", "fedavg", 2)
    run_small(
        tmp_path / "run",
        resume=True,
        run__checkpoint_every=5,
        run__baseline="fedvarp",
        title="Another",
        seeds=9,
        rules=["fedavg", "mifa"],
        options__mifa={"max_weight": 3.0},
        variants__mine={"rule": "mifa"},
    )
    assert exact_files(tmp_path / "run") == exact_files(tmp_path / "whole")


def test_a_run_of_an_older_version_had_the_defaults_of_younger_settings(tmp_path: Path) -> None:
    run_small(tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["experiment"]["training"]["shuffle"], manifest["experiment"]["server"]
    path.write_text(json.dumps(manifest))
    assert run_small(tmp_path / "run", resume=True).finished
    with pytest.raises(ConfigurationError, match=r"training.shuffle \(True, now False\)"):
        run_small(tmp_path / "run", resume=True, training__shuffle=False)


def test_an_older_manifest_names_the_settings_of_all_kinds(tmp_path: Path) -> None:
    stop_at(tmp_path / "run", "fedavg", 2)
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["experiment"]["partition"] |= {"alpha": 0.5, "shards_per_client": 2}
    manifest["experiment"]["participation"] |= {"mean_on": 4.0, "phases": "common", "trace": None}
    path.write_text(json.dumps(manifest))
    assert run_small(tmp_path / "run", resume=True).finished
    with pytest.raises(ConfigurationError, match=r"partition.gamma \(0.75, now 0.6\)"):
        run_small(tmp_path / "run", resume=True, partition__gamma=0.6)


def test_long_numbers_do_not_prevent_resuming(tmp_path: Path) -> None:
    """The manifest keeps nine digits; the same experiment is still the same."""
    stop_at(tmp_path / "run", "fedavg", 2, **{"training.rate": 0.1234567890123})
    run = run_small(tmp_path / "run", resume=True, training__rate=0.1234567890123)
    assert run.finished


def test_engine_and_threads_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest decides, not what the static rule would choose on this machine."""
    folder = tmp_path / "run"
    stop_at(folder, "fedavg", 2)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["engine"] = {"name": "sequential", "device": "cpu", "threads": 3}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    built: list[Experiment] = []

    def build(experiment: Experiment, seed: int, everybody: bool) -> World:
        built.append(experiment)
        return build_world(experiment.changed({"run.threads": 1}), seed, everybody)

    monkeypatch.setattr(runner, "build_world", build)
    assert run_small(folder, resume=True).finished
    assert [(e.run.engine, e.run.threads) for e in built] == [("sequential", 3)]


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_bytes(b"hello, this is not a checkpoint at all")
    elif how == "field":
        assert content.count(b"trained") == 1
        path.write_bytes(content.replace(b"trained", b"trainee"))
    elif how == "version":
        ours = rb"\"version\": %d" % VERSION
        assert ours in content
        path.write_bytes(content.replace(ours, rb"\"version\": 9"))
    else:
        assert how == "array" and b'"model"' in content
        path.write_bytes(content.replace(b'"model"', b'"modem"'))


@pytest.mark.parametrize("how", ["cut", "empty", "text", "field", "version", "array"])
def test_a_damaged_checkpoint_is_refused(how: str, tmp_path: Path) -> None:
    stop_at(tmp_path / "run", "fedavg", 3)
    for name in (CHECKPOINT, BEFORE):
        damage(tmp_path / "run" / name, how)
    with pytest.raises(FedsteerError, match="checkpoint") as caught:
        run_small(tmp_path / "run", resume=True)
    assert "\n" not in str(caught.value)


def test_records_shorter_than_the_checkpoint_are_refused(tmp_path: Path) -> None:
    stop_at(tmp_path / "run", "fedavg", 3)
    (tmp_path / "run" / "rounds.jsonl").unlink()
    with pytest.raises(DataError, match=r"rounds\.jsonl is shorter than its checkpoint says"):
        run_small(tmp_path / "run", resume=True)


def test_a_checkpoint_without_a_manifest_is_refused(tmp_path: Path) -> None:
    stop_at(tmp_path / "run", "fedavg", 3)
    (tmp_path / "run" / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"has a checkpoint but no manifest\.json"):
        run_small(tmp_path / "run", resume=True)


def test_a_folder_has_one_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PATIENCE", 0.0)
    experiment = small()
    cell = cell_of(experiment, "fedavg", tmp_path)
    first = runner.open_run(cell)
    assert first is not None
    with pytest.raises(ConfigurationError, match="another process is still writing"):
        runner.open_run(cell, resume=True)
    first.records.close()
    assert run_cell(cell, resume=True).finished


def test_a_run_that_ended_while_another_waited_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small()
    cell = cell_of(experiment, "fedavg", tmp_path)

    def ends_meanwhile(records: RecordWriter, patience: float) -> None:
        monkeypatch.undo()
        run_cell(cell, resume=True)

    monkeypatch.setattr(RecordWriter, "_claim", ends_meanwhile)
    assert runner.open_run(cell, resume=True) is None
    assert len(Run(tmp_path).rounds) == experiment.run.rounds
