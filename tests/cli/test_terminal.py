"""Progress on a terminal, Ctrl-C, and SIGKILL, in processes of their own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsteer.cli import main
from fedsteer.records import Run
from tests.cli.calling import ESCAPE, environment, fedsteer, small_file
from tests.simulate.small import exact_files

LONG = ["--set", "run.rounds=200", "--set", "run.evaluate_every=50"]
LONG += ["--set", "run.checkpoint_every=10"]


def start(folder: Path, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedsteer", *arguments],
        cwd=folder,
        env=environment(),
        **options,  # type: ignore[call-overload]
    )


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.05)
    pytest.fail(f"{path.name} never appeared")


@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
@pytest.mark.parametrize("quiet", [False, True])
def test_progress_appears_on_a_terminal_only(quiet: bool, tmp_path: Path) -> None:
    pytest.importorskip("rich")
    import pty

    ours, theirs = pty.openpty()
    command = ["run", small_file(tmp_path), "--rule", "fedavg", *(["--quiet"] if quiet else [])]
    process = start(tmp_path, *command, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 4096):
            seen += part
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    assert process.stdout is not None
    out = process.stdout.read().decode()
    process.stdout.close()
    assert process.wait() == 0
    assert ESCAPE not in out and out.startswith("fedavg: accuracy ")
    if quiet:
        assert seen == b""
    else:
        assert ESCAPE.encode() in seen and "round 6/6" in seen.decode()


def test_ctrl_c_finishes_the_round_and_tells_how_to_go_on(tmp_path: Path) -> None:
    command = ["run", small_file(tmp_path), "--rule", "fedsteer", "--out", "here", *LONG]
    process = start(tmp_path, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(tmp_path / "here" / "checkpoint.safetensors")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == b"" and err == b"fedsteer: stopped; the same command with --resume continues\n"
    so_far = len(Run(tmp_path / "here").rounds)
    assert 0 < so_far < 200 and not Run(tmp_path / "here").finished
    done = fedsteer(*command, "--resume", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = tmp_path / "whole"
    assert main([*command[:5], str(whole), *LONG]) == 0
    assert exact_files(tmp_path / "here") == exact_files(whole)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["fedsteer", "fedvarp", "scaffold"])
def test_sigkill_at_random_moments(rule: str, tmp_path: Path) -> None:
    command = ["run", small_file(tmp_path), "--rule", rule, "--out", "here", *LONG, "--resume"]
    draw, kills = random.Random(7), 0
    while True:
        process = start(tmp_path, *command, stdout=subprocess.DEVNULL)
        try:
            process.wait(timeout=draw.uniform(1.0, 3.0) * 1.3**kills)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        else:
            break
    assert process.returncode == 0 and kills
    whole = tmp_path / "whole"
    assert main([*command[:5], str(whole), *LONG]) == 0
    assert exact_files(tmp_path / "here") == exact_files(whole)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs process groups")
@pytest.mark.parametrize("told", ["group", "parent"])
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stop_reaches_a_comparison_in_processes(by: int, told: str, tmp_path: Path) -> None:
    command = ["compare", small_file(tmp_path), "--rules", "fedavg,fedsteer", "--out", "here"]
    command += [*LONG, "--jobs", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start(tmp_path, *command, start_new_session=True, **pipes)
    wait_for(tmp_path / "here" / "fedsteer" / "seed-0" / "checkpoint.safetensors")
    os.killpg(process.pid, by) if told == "group" else os.kill(process.pid, by)
    if by == signal.SIGKILL:
        process.wait()
    else:
        out, err = process.communicate(timeout=60)  # workers hold the pipes: they ended as well
        assert process.returncode == 130
        assert out == b"" and err == b"fedsteer: stopped; the same command continues\n"
    done = fedsteer(*command, folder=tmp_path)  # at once: workers of a dead parent may still write
    assert done.returncode == 0, done.stderr
    process.communicate(timeout=60)
    whole = tmp_path / "whole"
    assert main(["run", *command[1:2], "--rule", "fedsteer", "--out", str(whole), *LONG]) == 0
    assert exact_files(tmp_path / "here" / "fedsteer" / "seed-0") == exact_files(whole)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 1.0, 2.0])
def test_ctrl_c_while_workers_are_still_starting(after: float, tmp_path: Path) -> None:
    command = ["compare", small_file(tmp_path), "--rules", "fedavg,mifa", "--out", "here", *LONG]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start(tmp_path, *command, "--jobs", "2", start_new_session=True, **pipes)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text().split()) < 2:  # one keeps track of what they share
        time.sleep(0.01)
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (0, 130)  # a fast machine may have been through
    assert err.count(b"\n") <= 1 and b"Traceback" not in err
