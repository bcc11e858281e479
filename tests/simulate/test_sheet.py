"""Every table and figure of the paper runs end to end, small, and says what the paper said."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsteer.cli import main
from fedsteer.errors import ConfigurationError
from fedsteer.records import RecordWriter, find_runs
from fedsteer.report.published import lines_of, to_published_markdown
from fedsteer.simulate.sheet import load_sheet, shipped_sheets

NAMES = [
    "adaptive",
    "coreset-size",
    "curves",
    "frequency",
    "heatmap",
    "n500",
    "reconstruction",
    "table1",
    "table2",
]
QUICK = {"reconstruction", "table2"}


def test_all_of_them_are_shipped() -> None:
    assert list(shipped_sheets()) == NAMES


@pytest.mark.parametrize("reading", ["paper", "authors"])
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_can_be_built(name: str, reading: str, tmp_path: Path) -> None:
    sheet = load_sheet(name, reading=reading)
    assert sheet.cells(tmp_path)
    for column in sheet.columns:
        labels = {cell.entry.label for cell in sheet.cells(tmp_path)}
        for label in column.published:
            assert any(known == label or known.startswith(f"{label}-") for known in labels), label


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES]
)
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["reproduce", name, "--smoke", "--seeds", "1", "--quiet", "--out", str(out)]
    assert main([*command, "--jobs", "1"]) == 0
    assert "| experiment | rule | ours % |" in capsys.readouterr().out
    assert (out / "table.md").exists() and (out / "report.html").stat().st_size > 100_000
    assert all(run.finished for run in find_runs(out))


def test_authors_reading_flips_what_the_code_does_differently() -> None:
    paper, theirs = (
        load_sheet("table1", reading=reading, only="fashion-mnist-0.9").columns[0].experiment
        for reading in ("paper", "authors")
    )
    assert (paper.server.rate, theirs.server.rate) == (0.5, 1.0)
    assert (paper.training.batch, theirs.training.batch) == (64, 0)
    assert theirs.model.options["head"] == "softmax"
    assert theirs.options["fedsteer"]["basis"] == "mean"
    assert theirs.name == "fashion-mnist-0.9-authors"


def test_unknown_names() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'table1'"):
        load_sheet("tabel1")
    with pytest.raises(ConfigurationError, match="unknown column 'minst'"):
        load_sheet("table1", only="minst")
    with pytest.raises(ConfigurationError, match="unknown reading"):
        load_sheet("table1", reading="author")


def test_the_setting_of_a_family_is_chosen_on_held_out_images(tmp_path: Path) -> None:
    for label, accuracy, held_out in (("fedstale-0.5", 0.9, 0.1), ("fedstale-0.9", 0.4, 0.3)):
        with RecordWriter(tmp_path / label) as records:
            rule = {"label": label, "name": "fedstale"}
            records.manifest({"rule": rule, "seed": 0, "experiment": {"name": "x"}})
            records.finish({"accuracy": accuracy, "held_out_accuracy": held_out})
    lines = lines_of(find_runs(tmp_path), {"x": {"fedstale": 0.309}})
    table = to_published_markdown(lines)
    assert (
        "| x | fedstale (fedstale-0.9, chosen on held-out images) | 40.0 | 30.9 | +9.1 |" in table
    )
    assert "fedstale-0.5" not in table
