"""`fedsteer pack`, and what the other commands make of its file."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from fedsteer.cli import main
from fedsteer.records import find_runs, read_sheet
from fedsteer.records.files import write_json
from fedsteer.records.names import SHEET
from tests.report.made_records import make_comparison


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of two rules in `runs`."""
    monkeypatch.chdir(tmp_path)
    make_comparison(Path("runs"), ["fedavg", "fedsteer (paper)"], 2, 8, 6, name="emnist-0.9")


def test_every_form_of_the_report_reads_a_packed_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "runs", "--out", "kept/records.tar.xz"]) == 0
    assert capsys.readouterr().out.startswith("kept/records.tar.xz: 4 runs, ")
    for form in ("md", "csv", "text", "svg"):
        outputs = []
        for place in ("runs", "kept/records.tar.xz", "kept"):
            assert main(["report", place, "--format", form]) == 0
            outputs.append(capsys.readouterr().out)
        assert outputs[0] == outputs[1] == outputs[2] != ""
    assert main(["report", "kept/records.tar.xz"]) == 0
    assert capsys.readouterr().out == "kept/report.html\n"
    assert Path("kept/report.html").stat().st_size > 100_000


def test_a_copy_of_a_run_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "runs", "--out", "kept.tar.xz"]) == 0
    assert not capsys.readouterr().err
    assert main(["pack", "runs", "kept.tar.xz", "--out", "both.tar.xz"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("both.tar.xz: 4 runs, ")
    assert (
        said.err == "fedsteer: 4 runs, of other tables, of tuning or copies, are not in the file\n"
    )
    shown = []
    for places in (["runs"], ["runs", "kept.tar.xz"], ["both.tar.xz"]):
        assert main(["report", *places, "--format", "csv"]) == 0
        shown.append(capsys.readouterr())
    assert shown[0].out == shown[1].out == shown[2].out
    assert "4 runs, of other tables, of tuning or copies, are not in this report" in shown[1].err


def test_a_picture_goes_to_whatever_stands_for_the_terminal() -> None:
    with redirect_stdout(StringIO()) as told:
        assert main(["report", "runs", "--format", "svg"]) == 0
    assert told.getvalue().startswith("<svg")


def test_the_title_of_a_page_fits_all_that_is_in_it() -> None:
    def title(*places: str) -> str:
        assert main(["report", *places, "--out", "page.html"]) == 0
        return Path("page.html").read_text().split("<h1>")[1].split("</h1>")[0]

    make_comparison(Path("more"), ["fedavg"], 1, 8, 6, name="emnist-0.7")
    assert title("runs") == "Skewed participation, emnist-0.9"
    assert title("runs", "more") == "emnist-0.9, emnist-0.7"
    assert main(["pack", "more", "runs", "--sheet", "table1", "--out", "records.tar.xz"]) == 0
    assert title("records.tar.xz") == "Table 1: final test accuracy"
    page = Path("page.html").read_text()
    assert '"experiments":["emnist-0.9","emnist-0.7"]' in page  # in the order of the sheet
    make_comparison(Path("other"), ["fedavg"], 1, 8, 6, name="mine")
    assert title("records.tar.xz", "other") == "emnist-0.7, emnist-0.9, mine"


def test_tables_that_share_a_folder_are_reported_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """The runs of another table may be below the folder of this one."""
    make_comparison(Path("both", "a"), ["fedavg", "mifa"], 1, 8, 6, name="emnist-0.9")
    sheet = {"name": "mine", "title": "Mine", "paper": {"emnist-0.9": {"fedavg": 0.5}}}
    write_json(Path("both", SHEET), sheet | {"labels": ["fedavg"], "seeds": 1})
    for form in ("published", "md"):
        assert main(["report", "both", "--format", form]) == 0
        out = capsys.readouterr().out
        assert "fedavg" in out and "mifa" not in out


def test_columns_of_a_markdown_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs", "--format", "md", "--columns", "rule, accuracy %"]) == 0
    assert capsys.readouterr().out.startswith("| rule | accuracy % |\n| :-- | --: |\n")
    assert main(["report", "runs", "--format", "csv", "--columns", "rule"]) == 2
    assert capsys.readouterr().err == "fedsteer: --columns goes with --format md\n"


def test_runs_that_do_not_say_which_table_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs", "--format", "published"]) == 2
    assert "runs does not say which table of the paper it is" in capsys.readouterr().err
    made_by = ["--sheet", "table1", "--command", "fedsteer reproduce table1 --only emnist"]
    assert main(["pack", "runs", *made_by, "--out", "records.tar.xz"]) == 0
    sheet = read_sheet(Path("records.tar.xz"))
    assert sheet is not None and {"emnist-0.9", "emnist-0.9-authors"} <= set(sheet["paper"])
    capsys.readouterr()
    assert main(["report", "records.tar.xz", "--format", "published"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Table 1: final test accuracy") and "| 31.4 |" in out
    assert "\n    fedsteer reproduce table1 --only emnist\n" in out
    assert main(["report", "records.tar.xz", "--format", "published", "--out", "page"]) == 0
    assert sorted(path.name for path in Path("page").iterdir()) == [
        "cost.svg",
        "figure.svg",
        "table.md",
    ]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("pack runs --out records.zip", "--out must end in .tar.xz, not records.zip"),
        ("pack runs --command x --out a.tar.xz", "--command goes with --sheet"),
        ("pack absent --out a.tar.xz", "absent does not exist"),
        ("pack runs --sheet tabel1 --out a.tar.xz", "did you mean 'table1'?"),
        ("report broken.tar.xz", "broken.tar.xz is not an archive of records"),
    ],
)
def test_mistakes_are_one_line(command: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.tar.xz").write_bytes(b"nothing of the kind")
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
    assert not Path("a.tar.xz").exists()


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pack", "--help"])
    out = capsys.readouterr().out
    assert "examples:" in out and "fedsteer pack runs/compare-digits --out" in out


def test_a_folder_and_its_own_archive_are_not_counted_twice() -> None:
    assert main(["pack", "runs", "--out", "runs/records.tar.xz"]) == 0
    assert len(find_runs(Path("runs"))) == 4
