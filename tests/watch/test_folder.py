"""Runs as they go, look by look."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.records import Run
from fedsteer.records.names import MANIFEST, RESULT
from fedsteer.watch.folder import SETTLED, LiveFolder
from fedsteer.watch.run import RunState
from fedsteer.watch.words import moment
from tests.report.made_records import WARM_UP, make_comparison, make_run
from tests.watch.made_runs import age, begin, rounds


def only(folder: LiveFolder) -> RunState:
    (run,) = folder.look().runs
    return run


def test_a_run_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    live = LiveFolder(tmp_path)
    frame = live.look()
    assert frame.runs == [] and frame.focus is None and not frame.ended
    with closing(begin(tmp_path / "run")) as writer:
        assert only(live).status == "begun"
        rounds(writer, 1, 5)
        frame = live.look()
        run, details = frame.focus, frame.details
        assert run is not None and details is not None
        assert (run.status, run.round, run.rounds) == ("training", 5, 50)
        assert run.left == pytest.approx(45 * 4.0)
        assert run.value == 0.55 and run.best == (5, 0.55) and run.measure == "accuracy"
        assert run.numbers["step_factor"] == 0.5 and run.numbers["server_bytes"] == 612_000
        found = {one.name: (one.state, one.since) for one in details.clients}
        assert found == {"ward-2": ("failed", 3), "ward-0": ("fresh", 1), "ward-1": ("fresh", 5)}
        assert details.warnings[0].text == "did not answer in time"
        assert details.times[3] == "2026-01-01T00:03:00+00:00"
        rounds(writer, 6, 6)
        frame = live.look()
        assert frame.details is not None
        assert {one.name: one.state for one in frame.details.clients}["ward-1"] == "estimated"
        assert frame.details.curve[-1] == (6, 0.56)
        rounds(writer, 7, 8)
        writer.finish({"finished": True, "accuracy": 0.58, "rounds": 8})
    with closing(begin(tmp_path / "next")):
        ended = live.look("next").runs[1]  # the last rows count, in focus or not
    shutil.rmtree(tmp_path / "next")
    assert (ended.status, ended.round, ended.value) == ("ended", 8, 0.58)
    frame = live.look()
    assert not frame.ended  # a comparison may be about to begin its next run
    age(tmp_path, SETTLED + 5)
    assert live.look().ended and LiveFolder(tmp_path / "run").look().ended


def test_a_look_reads_nothing_but_what_was_written_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_comparison(tmp_path, ["fedavg", "mifa"], seeds=2)
    with closing(begin(tmp_path / "flower")) as writer:
        rounds(writer, 1, 5)
        live, opened = LiveFolder(tmp_path), []
        live.look()
        original = Path.open

        def noted(path: Path, *mode: str, **more: str) -> object:
            opened.append(path.name)
            return original(path, *mode, **more)  # type: ignore[call-overload]

        monkeypatch.setattr(Path, "open", noted)
        live.look()
        assert not [name for name in opened if name.endswith(".jsonl")]
        rounds(writer, 6, 6)
        live.look()
        assert {name for name in opened if name.endswith(".jsonl")} == {
            "rounds.jsonl",
            "clients.jsonl",
            "timing.jsonl",
        }


def test_rows_of_ended_runs_are_read_only_in_focus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_comparison(tmp_path, ["fedavg"], seeds=2)
    live, opened = LiveFolder(tmp_path), []
    monkeypatch.setattr(
        "fedsteer.records.tail.Tail.rows", lambda tail: opened.append(tail.path.parent.name) or ()
    )
    frame = live.look("rule-0/seed-1")
    assert set(opened) == {"seed-1"}
    opened.clear()
    read, note = Run.read, opened.append
    monkeypatch.setattr(Run, "read", lambda run, name: note(run.folder.name) or read(run, name))
    assert live.look("rule-0/seed-1").runs and set(opened) == {"seed-1"}
    other = next(run for run in frame.runs if run.name == "rule-0/seed-0")
    assert other.round == 40 and other.value is not None and "server_bytes" in other.numbers


def test_a_resumed_run_is_read_again_from_its_beginning(tmp_path: Path) -> None:
    live = LiveFolder(tmp_path)
    with closing(begin(tmp_path)) as writer:
        rounds(writer, 1, 3)
        offsets = writer.flush()
        rounds(writer, 4, 8)
        assert only(live).round == 8
        writer.rewind(offsets)
        rounds(writer, 4, 12, note="longer rows than before")
        frame = live.look()
        assert frame.details is not None
        assert [moment for moment, _ in frame.details.curve] == list(range(1, 13))
        visits = {one.name: one.visits for one in frame.details.clients}
        assert visits == {"ward-0": 12, "ward-1": 6, "ward-2": 0}


def test_a_new_run_in_the_same_folder_is_another_run(tmp_path: Path) -> None:
    live = LiveFolder(tmp_path)
    with closing(begin(tmp_path)) as writer:
        rounds(writer, 1, 3)
        assert only(live).round == 3
        writer.erase()
        writer.manifest({"rule": {"label": "mifa"}, "planned_rounds": 7})
        rounds(writer, 1, 1)
        assert (only(live).label, only(live).round, only(live).rounds) == ("mifa", 1, 7)


def test_a_half_written_line_and_a_damaged_one(tmp_path: Path) -> None:
    with closing(begin(tmp_path)) as writer:
        rounds(writer, 1, 3)
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('\0\0\n{"round":4,"acc')
    frame = LiveFolder(tmp_path).look()
    assert frame.runs[0].round == 3 and frame.details is not None and frame.details.damaged == 1


def test_a_run_without_news_is_quiet(tmp_path: Path) -> None:
    with closing(begin(tmp_path)) as writer:
        rounds(writer, 1, 3)
        live = LiveFolder(tmp_path)
        assert only(live).status == "training"
        age(tmp_path, 90)
        assert only(live).status == "quiet" and only(live).silent == pytest.approx(90, abs=30)
        writer.append("timing", {"round": 4, "seconds": 3600.0})  # rounds take an hour
        writer.append("rounds", {"round": 4, "phase": "train"})
        writer.publish()
        age(tmp_path, 2 * 3600)
        assert only(live).status == "training"
        age(tmp_path, 4 * 3600)
        assert only(live).status == "quiet" and not live.look().ended


def test_a_warm_up_and_a_run_of_the_simulator(tmp_path: Path) -> None:
    make_run(tmp_path, "fedsteer (practical)", rounds=20, finish=False)
    run = only(LiveFolder(tmp_path))
    assert (run.status, run.round, run.rounds) == ("training", 20, 20)
    frame = LiveFolder(tmp_path).look()
    assert frame.details is not None
    assert (len(frame.details.clients), frame.details.warm_up) == (20, WARM_UP)
    assert moment(WARM_UP + 3, frame.details) == "round 3"
    assert moment(WARM_UP, frame.details) == f"warm-up round {WARM_UP}"
    lines = (tmp_path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "rounds.jsonl").write_bytes(b"".join(lines[:4]))
    run = only(LiveFolder(tmp_path))
    assert (run.status, run.round, run.left) == ("warm-up", 4, None)


def test_loss_is_shown_where_no_accuracy_is_known(tmp_path: Path) -> None:
    with closing(begin(tmp_path)) as writer:
        rounds(writer, 1, 2, accuracy=None, loss=3.0)
        rounds(writer, 3, 3, accuracy=None, loss=4.0)
    run = only(LiveFolder(tmp_path))
    assert (run.measure, run.value, run.best) == ("loss", 4.0, (1, 3.0))


def test_failed_and_unreadable_runs_say_why_and_are_over(tmp_path: Path) -> None:
    with closing(begin(tmp_path / "a")) as writer:
        rounds(writer, 1, 2)
    (tmp_path / "a" / "failure.json").write_text('{"reason": "training diverges"}')
    with closing(begin(tmp_path / "b")):
        (tmp_path / "b" / RESULT).write_text("{")
    age(tmp_path, SETTLED + 5)
    frame = LiveFolder(tmp_path).look()
    assert [run.status for run in frame.runs] == ["failed", "unreadable"]
    assert frame.runs[0].reason == "training diverges"
    assert "is not a JSON object" in frame.runs[1].reason
    (tmp_path / "b" / MANIFEST).write_text("[]")
    assert LiveFolder(tmp_path).look("b").focus is not None


def test_the_focus_stays_until_its_run_ends(tmp_path: Path) -> None:
    with closing(begin(tmp_path / "b")) as writer:
        rounds(writer, 1, 1)
        live = LiveFolder(tmp_path)
        assert live.look().focus.name == "b"  # type: ignore[union-attr]
        with closing(begin(tmp_path / "a")) as other:
            rounds(other, 1, 1)
            assert live.look().focus.name == "b"  # type: ignore[union-attr]
            assert live.look("a").focus.name == "a"  # type: ignore[union-attr]
            writer.finish({"finished": True})
            frame = live.look()
            assert frame.focus is not None and frame.focus.name == "a"
            assert [run.name for run in frame.runs] == ["a", "b"]
    shutil.rmtree(tmp_path / "a")
    assert [run.name for run in live.look("a").runs] == ["b"]


def test_a_folder_that_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        LiveFolder(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is a file"):
        LiveFolder(tmp_path / "file")
