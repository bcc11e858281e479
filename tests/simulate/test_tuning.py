"""Server rates are chosen by runs of their own, on images that are not used otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedsteer.errors import ConfigurationError
from fedsteer.records import find_runs, pack_records, read_sheet, runs_of_sheet
from fedsteer.records.files import write_json
from fedsteer.report.entries import gather
from fedsteer.simulate.compare import compare_cells
from fedsteer.simulate.paper_table import PaperTable, load_paper_table
from fedsteer.simulate.tuning import FIRST_SEED, best_rate, scores_of
from tests.files import read_json

RULES = ["fedavg", "fedvarp:practical", "fedawe:practical"]


def small_matrix(rules: list[str]) -> PaperTable:
    table = load_paper_table("matrix", only="paper", smoke=True)
    experiments = [replace(one, rules=rules, seeds=1) for one in table.experiments]
    return replace(table, experiments=experiments)


def test_the_best_rate_is_that_of_the_highest_mean() -> None:
    assert best_rate({"0.25": [0.5, 0.5], "0.5": [0.2, 0.9], "1": [0.9, None]}) == 0.5
    assert best_rate({"0.25": [None], "0.5": [None]}) == 0.25


def test_rules_run_at_rates_chosen_on_held_out_images(tmp_path: Path) -> None:
    table = small_matrix(RULES)
    trials = table.tuning_cells(tmp_path)
    assert len(trials) == 4, "two rates; FedAWE moves the model itself and has none"
    assert {cell.seed for cell in trials} == {FIRST_SEED}
    compare_cells(trials, jobs=1)
    for cell in trials:
        best = cell.rule.label == "fedavg" and cell.experiment.server.rate == 0.25
        edit_held_out(cell.folder, 0.9 if best else cell.experiment.server.rate / 2)
    scores = scores_of(trials)
    assert scores["paper"]["fedavg"] == {"0.25": [0.9], "0.5": [0.25]}
    assert scores["paper"]["fedvarp (practical)"] == {"0.25": [0.625], "0.5": [0.75]}
    cells = table.cells(tmp_path, scores)
    rates = {cell.rule.label: cell.experiment.server.rate for cell in cells}
    assert rates == {"fedavg": 0.25, "fedvarp (practical)": 0.5, "fedawe (practical)": 0.5}
    assert [cell.experiment.tuned for cell in cells] == [["server.rate"], ["server.rate"], []]
    compare_cells(cells, jobs=1)

    sheet = table.record(scores=scores)
    reported = runs_of_sheet(find_runs(tmp_path), sheet)
    assert [entry.experiment for entry in gather(reported)] == ["paper"] * 3, "one experiment"
    write_json(tmp_path / "sheet.json", sheet)
    packed = tmp_path / "records.tar.xz"
    assert pack_records([tmp_path], packed) == 3
    again = read_sheet(packed)
    assert again is not None and again["tuning"] == scores, "what the choice was made from is kept"
    with pytest.raises(ConfigurationError, match=r"another experiment\.server\.rate"):
        compare_cells(table.cells(tmp_path), resume=True)


def edit_held_out(folder: Path, value: float) -> None:
    """As if the run had this accuracy; half a point apart for the averaged model."""
    rows = find_runs(folder)[0].rows("rounds")
    for row in rows:
        row |= {"held_out_accuracy": value, "average_held_out_accuracy": value + 0.5}
    lines = "".join(f"{row}\n".replace("'", '"') for row in rows)
    (folder / "rounds.jsonl").write_text(lines)
    assert read_json(folder / "result.json")["finished"]


def test_a_rate_of_the_users_own_needs_no_tuning(tmp_path: Path) -> None:
    table = load_paper_table("matrix", only="paper", settings={"server.rate": 0.7})
    assert table.tuning is None and table.tuning_cells(tmp_path) == []
    assert {cell.experiment.server.rate for cell in table.cells(tmp_path)} == {0.7}
    assert "tuning" not in table.record()


def test_tuning_and_reported_seeds_stay_apart() -> None:
    with pytest.raises(ConfigurationError, match="--seeds must be at most 1000"):
        load_paper_table("matrix", seeds=1001)
    with pytest.raises(ConfigurationError, match="matrix has no other reading"):
        load_paper_table("matrix", reading="authors")
