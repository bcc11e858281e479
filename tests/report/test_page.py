"""The page as text: what is in it and what is left out."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
import time
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsteer.report
from fedsteer.records import RecordWriter, find_runs, pack_records
from fedsteer.report import write_page
from fedsteer.report.curves import accuracy_curve, thinned
from fedsteer.report.page_data import coordinates
from fedsteer.report.visits import (
    EDGES,
    client_order,
    raster,
    read_visits,
    residuals,
    staleness_shares,
)
from tests.report.made_records import RULES, make_comparison, make_result, make_run


class Outline(HTMLParser):
    """Tags and ids of a page, with script contents set aside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids |= {value or "" for key, value in attrs if key == "id"}
        self.handlers += [key for key, _ in attrs if key.startswith("on")]


def page_of(folder: Path, title: str = "Made") -> str:
    return write_page(find_runs(folder), folder / "report.html", title).read_text()


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_comparison(tmp_path_factory.mktemp("comparison"), seeds=2)


@pytest.fixture(scope="module")
def page(comparison: Path) -> str:
    return page_of(comparison)


SECTIONS = {
    "accuracy": "Accuracy over training",
    "groups": "Accuracy by label group",
    "residual": "What the server knows of a returning client",
    "staleness": "How long clients were away",
    "variance": "Variance of the update",
    "pace": "Length of the steps",
    "cost": "What accuracy costs",
    "coordinates": "Coordinates of watched clients",
    "holds": "Who holds what",
    "raster": "Who was there",
    "events": "Norm bound and unused updates",
}


def test_all_sections_are_there(page: str) -> None:
    assert SECTIONS.keys() <= Outline(page).ids
    for key, heading in SECTIONS.items():
        assert f'<h2 id="{key}-title">{heading}</h2>' in page
    assert "$" not in page.split("<script")[0], "every placeholder is filled"


def test_one_file_no_network(page: str) -> None:
    outline = Outline(page)
    assert not {"link", "img", "iframe"} & set(outline.tags)
    assert not re.search(r"<script[^>]+src=", page)
    assert "default-src 'none'" in page
    assert "Plotly" in page


def test_every_rule_has_a_look_of_its_own(page: str) -> None:
    rules = data_of(page)["rules"]
    assert len(rules) == len(RULES)
    assert len({(rule["colour"], rule["dash"]) for rule in rules}) == len(rules)
    looks = {rule["name"]: rule["colour"] for rule in rules}
    assert looks["fedsteer (paper)"] == looks["fedsteer (practical)"]


def test_same_records_same_bytes(comparison: Path, page: str) -> None:
    assert page_of(comparison) == page


def test_warm_up_and_traffic_move_the_curve(page: str) -> None:
    data = data_of(page)
    names = [rule["name"] for rule in data["rules"]]
    steered = data["accuracy"][names.index("fedsteer (paper)")]
    assert [
        later - train for later, train in zip(steered["all"], steered["train"], strict=True)
    ] == [5] * len(steered["train"])
    assert steered["sent"] == sorted(steered["sent"])
    assert set(steered["groups"]) == {"common", "rare"}


def test_equal_rasters_are_stored_once(page: str) -> None:
    data = data_of(page)
    assert len(data["raster"]) == len(RULES)
    assert len(data["rasters"]) < len(RULES)


def several(folder: Path) -> Path:
    """Two experiments that share a rule."""
    make_comparison(folder / "a", ["fedavg", "mifa"], seeds=2, rounds=6, name="harder")
    return make_comparison(
        folder / "b", ["mifa", "full participation"], seeds=2, rounds=6, name="easier"
    ).parent


def test_a_rule_of_two_experiments_is_one_rule(tmp_path: Path) -> None:
    page = page_of(several(tmp_path))
    data = data_of(page)
    assert data["experiments"] == ["harder", "easier"]  # as the records come, not by name
    names = [rule["name"] for rule in data["rules"]]
    assert sorted(names) == ["fedavg", "full participation", "mifa"]
    assert "<li>3 rules</li>" in page and "<li>2 experiments</li>" in page
    found = {
        (data["experiments"][one["experiment"]], names[one["rule"]]) for one in data["entries"]
    }
    assert found == {
        ("harder", "fedavg"), ("harder", "mifa"),
        ("easier", "mifa"), ("easier", "full participation"),
    }  # fmt: skip
    assert page.count('<table class="headline') == 2


def test_experiments_can_be_put_in_order(tmp_path: Path) -> None:
    runs, path = find_runs(several(tmp_path)), tmp_path / "report.html"
    page = write_page(runs, path, paper_table={"paper": {"absent": {}, "easier": {}}}).read_text()
    assert data_of(page)["experiments"] == ["easier", "harder"]


def test_an_experiment_does_not_repeat_the_title(tmp_path: Path) -> None:
    make_run(tmp_path, rounds=4)  # "Skewed participation, digits"
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace("participation, digits", "participation: digits"))
    page = page_of(tmp_path, "Skewed participation")
    assert "<li>digits</li>" in page and "<li>Skewed participation: digits</li>" not in page


def test_one_experiment_has_no_selector(page: str) -> None:
    assert 'data-choice="experiment"' not in page and 'data-pick="experiment"' not in page
    assert "data-experiment=" not in page.split("<script")[0]


def test_equal_data_of_two_experiments_is_kept_once(tmp_path: Path) -> None:
    for name in ("one", "other"):
        make_run(tmp_path / name, rounds=4, name=name)
    data = data_of(page_of(tmp_path))
    assert len(data["pictures"]) == 1 and data["holds"] == [0, 0]


@pytest.mark.parametrize(("clients", "notes"), [("first", 3), ("all", 0), ("none", 0)])
def test_page_says_if_rows_are_of_some_seeds(tmp_path: Path, clients: str, notes: int) -> None:
    make_comparison(tmp_path / "runs", ["fedavg", "fedsteer (paper)"], seeds=2, rounds=14)
    pack_records([tmp_path / "runs"], tmp_path / "records.tar.xz", clients=clients)
    runs = find_runs(tmp_path / "records.tar.xz")
    page = write_page(runs, tmp_path / "report.html").read_text()
    words = "These records hold client rows of some seeds only."
    assert page.count(words) == notes  # residual, staleness, dropped
    assert words not in page_of(tmp_path / "runs")


def test_the_time_of_a_run_is_not_shown(page: str) -> None:
    """Runs share a machine."""
    assert '<button type="button">seeds</button>' in page
    assert '<button type="button">time</button>' not in page


def test_mean_relative_error_by_staleness(tmp_path: Path) -> None:
    make_result(tmp_path / "a", "mifa", 0, {})
    make_result(tmp_path / "b", "mifa", 1, {})
    make_result(tmp_path / "c", "mifa", 2, {})
    errors = {"a": [(1, 0.2), (1, 0.4), (5, 1.0)], "b": [(1, 0.5), (4, 2.0)], "c": [(1, 0.7)]}
    for folder, rows in errors.items():
        with closing(RecordWriter(tmp_path / folder)) as writer:
            for moment, (staleness, error) in enumerate(rows, start=1):
                row = {"round": moment, "client": 0, "event": "fresh"}
                writer.append("clients", row | {"staleness": staleness, "relative_error": error})
    found = residuals([read_visits(run) for run in find_runs(tmp_path)])
    assert found is not None
    assert found["bin"] == ["1", "4 to 5"]
    assert found["mean"] == [0.5, 1.5]  # seeds 0.3, 0.5 and 0.7; 1.0 and 2.0
    assert found["half"][0] == pytest.approx(4.3027 * 0.2 / 3**0.5, rel=1e-3)
    assert found["half"][1] is None  # two seeds
    assert found["count"] == [4, 2]


def test_shares_of_staleness_are_per_round_of_absence(tmp_path: Path) -> None:
    make_result(tmp_path, "mifa", 0, {})
    with closing(RecordWriter(tmp_path)) as writer:
        for staleness in range(1, 11):  # as many of each, so nothing may look like a peak
            row = {"round": staleness, "client": 0, "event": "fresh", "staleness": staleness}
            writer.append("clients", row)
    found = staleness_shares([read_visits(run) for run in find_runs(tmp_path)])
    assert found is not None
    assert found[""]["bin"] == ["1", "2", "3", "4 to 5", "6 to 7", "8 to 10"]
    assert found[""]["share"] == [0.1, 0.1, 0.1, 0.2, 0.2, 0.3]
    assert found[""]["y"] == pytest.approx([0.1] * 6)


def test_coordinates_are_drawn_over_training_rounds(tmp_path: Path) -> None:
    make_run(tmp_path, rounds=6, label="fedsteer (paper)")
    (run,) = find_runs(tmp_path)
    assert run.rounds[0]["phase"] == "warm-up" and len(run.rounds) > 6
    picture = coordinates(run)
    assert picture is not None and picture["rounds"] == [1, 2, 3, 4, 5, 6]


def test_staleness_bins_have_no_gaps() -> None:
    assert EDGES[:10] == [1, 2, 3, 4, 6, 8, 11, 16, 23, 32]
    assert sorted(set(EDGES)) == EDGES


def test_clients_are_ordered_by_group_then_presence() -> None:
    clients = {"data_group": ["rare", "common", "rare"], "probabilities": [0.1, 0.5, 0.3]}
    assert client_order({"clients": clients}) == ["2", "0", "1"]


def test_raster_of_many_clients_and_rounds_is_thinned(tmp_path: Path) -> None:
    make_result(tmp_path, "fedavg", 0, {})
    with closing(RecordWriter(tmp_path)) as writer:
        for client in range(500):
            writer.append("clients", {"round": 2 * client + 1, "client": client, "event": "fresh"})
    picture = raster(find_runs(tmp_path)[0])
    assert picture is not None
    assert len(picture["clients"]) == 200 and picture["of"] == 500
    assert picture["step"] == 3 and len(picture["image"][0]) == 333
    assert all(row.count("2") == 1 for row in picture["image"])


def test_thinning_keeps_both_ends() -> None:
    kept = thinned(range(1000), 200)
    assert len(kept) == 200 and kept[0] == 0 and kept[-1] == 999
    assert thinned(range(3), 200) == [0, 1, 2]


def test_curve_is_the_mean_over_seeds(tmp_path: Path) -> None:
    make_comparison(tmp_path, ["fedavg"], seeds=3, rounds=4)
    runs = find_runs(tmp_path)
    curve = accuracy_curve(runs)
    assert curve is not None
    finals = [run.rounds[-1]["accuracy"] for run in runs]
    assert curve["mean"][-1] == pytest.approx(np.mean(finals), abs=1e-4)
    assert curve["half"][-1] == pytest.approx(4.3027 * np.std(finals, ddof=1) / 3**0.5, rel=1e-2)


def test_two_seeds_draw_no_band(tmp_path: Path) -> None:
    make_comparison(tmp_path, ["fedavg"], seeds=2, rounds=4)
    curve = accuracy_curve(find_runs(tmp_path))
    assert curve is not None and set(curve["half"]) == {None} and None not in curve["mean"]


def flower_run(folder: Path, **evaluation: float) -> Path:
    """Ten nodes are asked, one fails more often from round to round, and one is never used."""
    with closing(RecordWriter(folder)) as writer:
        writer.manifest({"rule": {"name": "fedsteer", "label": "fedsteer"}, "seed": 0})
        for moment in range(1, 6):
            counts = {"asked": 10, "failed": moment, "active": 9 - moment, "epsilon": 2.0 * moment}
            known = {name: value / moment for name, value in evaluation.items()}
            row = {"round": moment, "training_round": moment, "phase": "train", **counts, **known}
            writer.append("rounds", row)
        writer.finish({"finished": True, "rounds": 5})
    return folder


def test_without_an_accuracy_the_loss_is_drawn(tmp_path: Path) -> None:
    page = page_of(flower_run(tmp_path / "loss", loss=2.0))
    data = data_of(page)
    assert data["measure"] == "loss" and "Loss over training" in page
    assert data["accuracy"][0]["mean"] == [2.0, 1.0, 0.6667, 0.5, 0.4]
    page = page_of(flower_run(tmp_path / "both", loss=2.0, accuracy=0.5))
    assert data_of(page)["measure"] == "accuracy" and "Accuracy over training" in page


def test_how_many_were_asked_answered_and_used_and_at_what_cost(tmp_path: Path) -> None:
    data = data_of(page_of(flower_run(tmp_path, loss=1.0)))
    assert data["panels"]["answers"] == ["asked", "answered", "used"]
    (answers,) = data["answers"]
    assert answers["asked"]["y"] == [10] * 5
    assert answers["answered"]["y"] == [9, 8, 7, 6, 5]
    assert answers["used"]["y"] == [8, 7, 6, 5, 4]
    assert data["panels"]["privacy"] == ["epsilon"]
    assert data["privacy"][0]["epsilon"]["y"] == [2, 4, 6, 8, 10]


def test_full_size_comparison_is_small_and_quick(tmp_path: Path) -> None:
    """10 rules x 8 seeds x 150 rounds, 100 clients. The runs of each rule are one, copied."""
    for place, label in enumerate(list(RULES)[:10]):
        first = make_run(
            tmp_path / f"{place}" / "seed-0", label=label, rounds=150, clients=100, every=1
        )
        manifest = json.loads((first / "manifest.json").read_text())
        for seed in range(1, 8):
            folder = first.with_name(f"seed-{seed}")
            folder.mkdir()
            for file in first.iterdir():
                (folder / file.name).write_bytes(file.read_bytes())
            (folder / "manifest.json").write_text(json.dumps(manifest | {"seed": seed}))
    begin = time.process_time()  # not the wall: others may be working
    path = write_page(find_runs(tmp_path), tmp_path / "report.html", "Full size")
    assert time.process_time() - begin < 30
    assert path.stat().st_size < 2_500_000


def test_reading_records_needs_neither_torch_nor_pandas() -> None:
    program = (
        "import sys, fedsteer.report; "
        "heavy = {'matplotlib', 'torch', 'pandas', 'plotly', 'scipy', 'sklearn'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_report_knows_records_and_errors_only() -> None:
    package = Path(fedsteer.report.__file__).parent
    imported = {
        node.module
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedsteer")
    }
    allowed = ("fedsteer.records", "fedsteer.errors", "fedsteer.report")
    assert {name for name in imported if not name.startswith(allowed)} == set()


def test_plotly_is_the_published_file() -> None:
    assets = Path(fedsteer.report.__file__).parent / "assets"
    script = (assets / "plotly-cartesian.min.js").read_bytes()
    assert hashlib.sha256(script).hexdigest() in (assets / "README.md").read_text()
    assert (assets / "plotly-cartesian.LICENSE").read_text().startswith("MIT License")
