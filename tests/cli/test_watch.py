"""`fedsteer watch`: exit codes, the terminal, Ctrl-C, and that it leaves no trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from fedsteer.cli import main
from tests.cli.calling import ESCAPE, environment, small_file
from tests.report.made_records import make_comparison
from tests.watch.made_runs import age, begin, rounds


def start(folder: Path, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedsteer", "watch", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment() | {"TERM": "xterm"},
        stderr=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_ended_runs_are_shown_once_and_left_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_comparison(tmp_path, ["fedavg", "mifa"], seeds=1)
    age(tmp_path, 60)
    before = contents(tmp_path)
    for more in ([], ["--serve"]):
        assert main(["watch", str(tmp_path), *more]) == 0
        out = capsys.readouterr().out
        assert f"all runs have ended; their page: fedsteer report {tmp_path}" in out
        assert ("round 40/40 · the run has ended" in out) == (not more)
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "2 ended" in capsys.readouterr().out
    assert contents(tmp_path) == before


def test_one_frame_of_a_run_under_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(begin(tmp_path / "run")) as writer:
        rounds(writer, 1, 4)
        before = contents(tmp_path)  # its writer holds the lock, and does not notice
        assert main(["watch", str(tmp_path), "--once"]) == 0
        assert contents(tmp_path) == before
        rounds(writer, 5, 5)
    out = capsys.readouterr().out
    assert "round 4/50" in out and "1 failed" in out and ESCAPE not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none"], "none does not exist"),
        (["small.toml"], "small.toml is a file"),
        ([".", "--port", "80"], "--port goes with --serve"),
        ([".", "--serve", "--once"], "--once prints one frame"),
        ([".", "--every", "0"], "--every must be from 0.2 to 3600 seconds, not 0"),
        ([".", "--every", "nan"], "--every must be from"),
        ([".", "--serve", "--port", "99999"], "cannot serve on port 99999"),
    ],
)
def test_mistakes(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["watch", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


def test_every_round_of_a_run_of_the_simulator_is_seen_at_once(tmp_path: Path) -> None:
    """Without a checkpoint in between: rows do not wait in a buffer."""
    from fedsteer.simulate.cells import Cell, find_rule
    from fedsteer.simulate.experiment_files import load_experiment
    from fedsteer.simulate.runner import run_cell
    from fedsteer.watch.folder import LiveFolder

    experiment = load_experiment(small_file(tmp_path), {"run.checkpoint_every": 1000})
    folder, seen = tmp_path / "run", []
    rule = find_rule(experiment, "fedsteer:practical")

    def look(row: dict[str, int]) -> None:
        frame = LiveFolder(folder).look()
        assert frame.details is not None
        fresh = [one for one in frame.details.clients if one.state == "fresh"]
        seen.append((frame.runs[0].round, len(fresh)) == (row["training_round"], row["active"]))

    run_cell(Cell(experiment=experiment, rule=rule, seed=0, folder=folder), trackers=[look])
    assert seen == [True] * experiment.run.rounds


def test_ctrl_c_ends_the_page(tmp_path: Path) -> None:
    with closing(begin(tmp_path / "run")) as writer:
        rounds(writer, 1, 4)
        process = start(tmp_path, "run", "--serve", stdout=subprocess.PIPE)
        assert process.stdout is not None
        address = process.stdout.readline().split()[0].decode()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b"<title>fedsteer watch</title>" in answer.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err == b"fedsteer: interrupted\n" and out == b""


@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
@pytest.mark.parametrize("rich", [True, False])
def test_the_terminal_follows_a_run_until_it_ends(rich: bool, tmp_path: Path) -> None:
    """In place, with rich and without."""
    if rich:
        pytest.importorskip("rich")
    import pty

    hide = "import sys; sys.modules['rich'] = None\nimport importlib.util as u; f = u.find_spec\n"
    hide += "u.find_spec = lambda name: None if name == 'rich' else f(name)\n"
    program = f"{'' if rich else hide}from fedsteer.cli import main; raise SystemExit(main())"
    ours, theirs = pty.openpty()
    with closing(begin(tmp_path / "run")) as writer:
        rounds(writer, 1, 4)
        process = subprocess.Popen(
            [sys.executable, "-c", program, "watch", "run", "--every", "0.2"],
            cwd=tmp_path,
            env=environment() | {"TERM": "xterm", "COLUMNS": "80", "LINES": "40"},
            stdout=theirs,
        )
        os.close(theirs)
        seen = b""
        while b"round 4/50" not in seen:
            seen += os.read(ours, 4096)
        rounds(writer, 5, 5)
        while b"round 5/50" not in seen:
            seen += os.read(ours, 4096)
        writer.finish({"finished": True})
        try:
            while part := os.read(ours, 4096):
                seen += part
        except OSError:  # the other side is closed
            pass
    os.close(ours)
    assert process.wait(30) == 0
    assert b"the run has ended" in seen and b"fedsteer report run" in seen
    assert (b"\x1b[H\x1b[J" in seen) == (not rich) and ESCAPE.encode() in seen
