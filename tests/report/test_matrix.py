"""The matrix: the right number in every cell, marks, order and colours, from records alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fedsteer.records import RecordWriter, Run, find_runs
from fedsteer.report import files_of
from fedsteer.report.figures.matrix import NOTE, matrix_figure

SHEET = {
    "title": "M",
    "about": "A.",
    "figure": "matrix",
    "paper": {"text": {}, "code": {}},
    "ceilings": {"code": "text", "absent": "text"},
    "tuning": {
        "text": {
            "full participation (practical)": {"rate": 0.5, "model": "averaged"},
            "fedsteer (practical)": {"rate": 0.25, "model": "averaged"},
            "fedavg": {"rate": 1.0, "model": "last"},
        },
        "code": {"fedsteer (practical)": {"rate": None, "model": "last"}},
    },
}


def made(
    folder: Path,
    setting: str,
    label: str,
    seeds: Sequence[float | None],
) -> None:
    """Runs with this accuracy in the last third of nine rounds; None is one that failed."""
    name, _, preset = label.partition(" (")
    for seed, accuracy in enumerate(seeds):
        with closing(RecordWriter(folder / setting / label / f"seed-{seed}")) as records:
            rule = {"label": label, "name": name, "preset": preset.rstrip(")") or "paper"}
            experiment, data = {"name": setting}, {"classes": 10}
            records.manifest({"rule": rule, "seed": seed, "experiment": experiment, "data": data})
            for number in range(1, 10):
                row: dict[str, Any] = {"round": number, "training_round": number, "accuracy": 0.3}
                if accuracy is not None and number > 6:
                    row |= {"accuracy": accuracy, "average_accuracy": accuracy + 0.05}
                records.append("rounds", row)
            if accuracy is not None:
                records.finish({"bytes_up": 2e6, "server_bytes": 5e3, "warm_up_rounds": 7})
        if accuracy is None:
            (records.folder / "failure.json").write_text('{"reason": "it diverged"}')


def filled(folder: Path) -> list[Run]:
    made(folder, "text", "full participation (practical)", [0.85, 0.75])
    made(folder, "text", "fedavg", [0.70, 0.60, 0.65])
    made(folder, "text", "fedsteer (practical)", [0.75, 0.65])
    made(folder, "text", "mifa", [0.15, None, 0.6])
    made(folder, "code", "fedavg", [0.80, 0.70])
    made(folder, "code", "mifa", [0.74, 0.78])
    made(folder, "code", "fedsteer (practical)", [0.50, 0.40])
    return find_runs(folder)


def test_every_cell_is_the_mean_of_the_last_third(tmp_path: Path) -> None:
    lines = matrix_figure(filled(tmp_path), SHEET).table.splitlines()
    assert lines[:6] == [
        "| rule | text | code |",
        "| :-- | --: | --: |",
        "| full participation (practical) | 85.0 ± 5.0 | 85.0 ± 5.0 |",
        "| fedsteer (practical) | **75.0** ± 5.0 | 45.0 ± 5.0 |",
        "| fedavg | 65.0 ± 2.9 | **75.0** ± 5.0 |",
        "| mifa | 28.3 ± 15.9 †2 | **76.0** ± 2.0 |",
    ]
    assert NOTE in lines
    assert "| mifa | 10.0 | 74.0 |" in lines, "the worst seed; one that failed counts as guessing"
    assert "| full participation (practical) | 0.5, averaged | 0.5, averaged |" in lines
    assert "| fedsteer (practical) | 0.25, averaged | last |" in lines
    assert "| fedavg | 1, last | last |" in lines
    assert "| mifa | 1.5 | 10.0 (text) | 2 of 5 | 5.00 kB | 2.00 MB | 7 |" in lines
    own = "| full participation (practical) | - | 80.0 (text) | 0 of 2 |"
    assert own in "\n".join(lines), "runs count once"


def test_only_full_participation_is_that_of_another_setting(tmp_path: Path) -> None:
    filled(tmp_path)
    made(tmp_path, "text", "fedawe", [0.5])
    made(tmp_path, "other", "fedavg", [0.5])
    ceilings = {"ceilings": {"code": "text", "other": "nowhere"}}
    lines = matrix_figure(find_runs(tmp_path), SHEET | ceilings).table.splitlines()
    assert lines[0] == "| rule | text | code | other |"
    assert lines[2] == "| full participation (practical) | 85.0 ± 5.0 | 85.0 ± 5.0 | - |"
    assert "| fedawe | 50.0 ± 0.0 | - | - |" in lines


def test_equals_of_the_best_are_paired_by_seed(tmp_path: Path) -> None:
    made(tmp_path, "s", "always a little better", [0.70, 0.50, 0.60])
    made(tmp_path, "s", "always a little worse", [0.69, 0.49, 0.59])
    made(tmp_path, "s", "as often better as worse", [0.50, 0.60, 0.69])
    table = matrix_figure(find_runs(tmp_path), {}).table
    assert "| always a little better | **60.0** ±" in table
    assert "| always a little worse | 59.0 ±" in table
    assert "| as often better as worse | **59.7** ±" in table


def test_files_of_the_matrix(tmp_path: Path) -> None:
    runs = filled(tmp_path)
    files = dict(files_of(runs, SHEET))
    assert list(files) == ["table.md", "figure.svg"]
    assert files["table.md"].startswith("# M\n\nA.\n\n| rule | text | code |")
    assert "| experiment |" not in files["table.md"] and "16 runs" in files["table.md"]
    words = [n.text for n in ElementTree.fromstring(files["figure.svg"]).iter() if "text" in n.tag]
    assert words.index("text") < words.index("code")
    assert words.count("85.0") == 2 and {"75.0", "76.0", "points to full participation"} <= set(
        words
    )
    bold = [line for line in files["figure.svg"].splitlines() if ">76.0</text>" in line]
    assert len(bold) == 1 and "font-weight: 700" in bold[0]
    assert files == dict(files_of(find_runs(tmp_path), SHEET)), "the same bytes every time"


def test_without_a_finished_or_failed_run_there_is_no_matrix(tmp_path: Path) -> None:
    with closing(RecordWriter(tmp_path / "a" / "seed-0")) as records:
        records.manifest({"rule": {"label": "a", "name": "a"}, "seed": 0})
    assert matrix_figure(find_runs(tmp_path), {}) is None
    assert list(dict(files_of(find_runs(tmp_path), SHEET))) == ["table.md"]


@pytest.mark.parametrize("classes", [None, 47])
def test_chance_is_twice_guessing(tmp_path: Path, classes: int | None) -> None:
    with closing(RecordWriter(tmp_path / "a" / "seed-0")) as records:
        known = {"data": {"classes": classes}} if classes else {}
        records.manifest({"rule": {"label": "a", "name": "a"}, "seed": 0} | known)
        for number in range(1, 4):
            row = {"round": number, "training_round": number, "accuracy": 0.04}
            records.append("rounds", row)
        records.finish({"finished": True})
    table = matrix_figure(find_runs(tmp_path), {}).table
    assert ("4.0** ± 0.0 †1" in table) == (classes == 47)
