"""Where `fedsteer report` puts what it made."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedsteer.cli import main
from tests.report.made_records import make_comparison


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_comparison(Path("runs"), ["fedavg", "mifa"], seeds=1, rounds=6, clients=4)
    Path("folder").mkdir()


@pytest.mark.parametrize(
    ("form", "name"),
    [("html", "report.html"), ("md", "report.md"), ("csv", "report.csv"), ("text", "report.txt")],
)
def test_a_folder_gets_a_file_named_by_the_format(form: str, name: str) -> None:
    assert main(["report", "runs", "--format", form, "--out", "folder"]) == 0
    assert [path.name for path in Path("folder").iterdir()] == [name]
    assert "fedavg" in Path("folder", name).read_text()
    assert sorted(path.name for path in Path().iterdir()) == ["folder", "runs"]


@pytest.mark.parametrize(("form", "start"), [("html", "<!doctype html>"), ("md", "| rule |")])
def test_a_dash_is_standard_output(
    form: str, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "runs", "--format", form, "--out", "-"]) == 0
    assert capsys.readouterr().out.lower().startswith(start)
    assert sorted(path.name for path in Path().iterdir()) == ["folder", "runs"]


def test_what_is_no_plain_file_is_written_to_and_not_replaced() -> None:
    Path("linked.md").symlink_to(Path("folder", "target.md"))
    for _ in range(2):
        assert main(["report", "runs", "--format", "md", "--out", "linked.md"]) == 0
        assert Path("linked.md").is_symlink()
        assert Path("folder", "target.md").read_text().startswith("| rule |")
    os.mkfifo("pipe")
    with ThreadPoolExecutor() as pool:
        read = pool.submit(Path("pipe").read_text)
        assert main(["report", "runs", "--format", "csv", "--out", "pipe"]) == 0
        assert read.result(timeout=60).startswith("experiment,label")
    assert Path("pipe").is_fifo()


def test_a_folder_where_the_page_should_be(capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder", "report.html").mkdir()
    assert main(["report", "runs", "--out", "folder"]) == 2
    said = capsys.readouterr().err
    assert said == "fedsteer: cannot write to folder/report.html: it is a folder\n"
    assert [path.name for path in Path("folder").iterdir()] == ["report.html"]


def test_the_page_is_written_beside_the_runs_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs"]) == 0
    assert capsys.readouterr().out == "runs/report.html\n"
    assert main(["pack", "runs", "--out", "packed/records.tar.xz"]) == 0
    capsys.readouterr()
    assert main(["report", "packed/records.tar.xz"]) == 0
    assert capsys.readouterr().out == "packed/report.html\n"
