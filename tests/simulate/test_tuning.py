"""Rates and models are chosen by runs of their own, on images that are not used otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsteer.errors import ConfigurationError
from fedsteer.records import find_runs, pack_records, read_sheet, runs_of_sheet
from fedsteer.records.files import write_json
from fedsteer.records.reader import join_sheets
from fedsteer.report.entries import gather
from fedsteer.report.figures import table_of
from fedsteer.simulate.compare import compare_cells
from fedsteer.simulate.paper_table import PaperTable, load_paper_table
from fedsteer.simulate.tuning import FIRST_SEED, choices_of
from tests.files import read_json

RULES = ["fedavg", "fedvarp:practical", "fedawe:practical"]


def small_matrix(rules: list[str]) -> PaperTable:
    table = load_paper_table("matrix", only="paper", smoke=True)
    experiments = [replace(one, rules=rules, seeds=1) for one in table.experiments]
    return replace(table, experiments=experiments)


def test_rules_run_at_rates_chosen_on_held_out_images(tmp_path: Path) -> None:
    table = small_matrix(RULES)
    trials = table.tuning_cells(tmp_path)
    labels = [cell.rule.label for cell in trials]
    assert labels.count("fedavg") == 2 and labels.count("fedvarp (practical)") == 2
    assert labels.count("fedawe (practical)") == 1, "it moves the model itself: no rate to choose"
    assert {cell.seed for cell in trials} == {FIRST_SEED}
    compare_cells(trials, jobs=1)
    for cell in trials:
        held_out = {("fedavg", 0.25): (0.9, 0.99), ("fedvarp", 0.25): (0.8, 0.6)}
        edit_held_out(
            cell.folder, *held_out.get((cell.rule.name, cell.experiment.server.rate), (0.5, 0.7))
        )
    choices = choices_of(trials)
    assert choices["paper"] == {
        # The paper's forms know no averaged model.
        "fedavg": {
            "rate": 0.25,
            "model": "last",
            "scores": {"0.25 last": [0.9], "0.5 last": [0.5]},
        },
        "fedvarp (practical)": {
            "rate": 0.25,
            "model": "last",
            "scores": {
                "0.25 last": [0.8],
                "0.25 averaged": [0.6],
                "0.5 last": [0.5],
                "0.5 averaged": [0.7],
            },
        },
        "fedawe (practical)": {
            "rate": None,
            "model": "averaged",
            "scores": {"0.25 last": [0.5], "0.25 averaged": [0.7]},
        },
    }
    cells = table.cells(tmp_path, choices)
    rates = {cell.rule.label: cell.experiment.server.rate for cell in cells}
    assert rates == {"fedavg": 0.25, "fedvarp (practical)": 0.25, "fedawe (practical)": 0.5}
    assert [cell.experiment.tuned for cell in cells] == [["server.rate"], ["server.rate"], []]
    compare_cells(cells, jobs=1)

    sheet = table.record(choices=choices)
    reported = runs_of_sheet(find_runs(tmp_path), sheet)
    assert [entry.experiment for entry in gather(reported)] == ["paper"] * 3, "one experiment"
    write_json(tmp_path / "sheet.json", sheet)
    packed = tmp_path / "records.tar.xz"
    assert pack_records([tmp_path], packed) == 3
    again = read_sheet(packed)
    assert again is not None and again["tuning"] == choices, "what the choice was made from is kept"
    assert "| fedawe (practical) | averaged |" in table_of(reported, again)
    with pytest.raises(ConfigurationError, match=r"another experiment\.server\.rate"):
        compare_cells(table.cells(tmp_path), resume=True)


def test_a_run_that_failed_counts_as_zero(tmp_path: Path) -> None:
    trials = small_matrix(["fedavg"]).tuning_cells(tmp_path)
    compare_cells(trials[1:], jobs=1)
    edit_held_out(trials[1].folder, 0.1, 0.1)
    choice = choices_of(trials)["paper"]["fedavg"]
    assert choice["rate"] == 0.5 and choice["scores"] == {"0.25 last": [0.0], "0.5 last": [0.1]}


def edit_held_out(folder: Path, last: float, averaged: float) -> None:
    """As if the run had these accuracies."""
    rows = find_runs(folder)[0].rows("rounds")
    for row in rows:
        row |= {"held_out_accuracy": last, "average_held_out_accuracy": averaged}
    lines = "".join(f"{row}\n".replace("'", '"') for row in rows)
    (folder / "rounds.jsonl").write_text(lines)
    assert read_json(folder / "result.json")["finished"]


def test_commands_with_other_rules_of_a_column_keep_what_each_chose() -> None:
    def sheet(**tuning: Any) -> dict[str, Any]:
        return small_matrix(RULES).record(choices=tuning)

    first = sheet(paper={"fedavg": {"rate": 0.25}, "mifa": {"rate": 0.5}}, half={"mifa": {}})
    second = sheet(paper={"mifa": {"rate": 1.0}, "fedprox": {"rate": 0.5}})
    assert join_sheets(first, second)["tuning"] == {
        "paper": {"fedavg": {"rate": 0.25}, "mifa": {"rate": 1.0}, "fedprox": {"rate": 0.5}},
        "half": {"mifa": {}},
    }


def test_a_rate_of_the_users_own_needs_no_tuning(tmp_path: Path) -> None:
    table = load_paper_table("matrix", only="paper", settings={"server.rate": 0.7})
    assert table.tuning is None and table.tuning_cells(tmp_path) == []
    assert {cell.experiment.server.rate for cell in table.cells(tmp_path)} == {0.7}
    assert table.record()["tuning"] == {}


def test_tuning_and_reported_seeds_stay_apart() -> None:
    with pytest.raises(ConfigurationError, match="--seeds must be at most 1000"):
        load_paper_table("matrix", seeds=1001)
    with pytest.raises(ConfigurationError, match="matrix has no other reading"):
        load_paper_table("matrix", reading="authors")
