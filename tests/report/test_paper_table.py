"""Our figures beside the paper's: every cost shown, settings chosen on held-out images only."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from fedsteer.records import RecordWriter, find_runs, pack_records, read_sheet
from fedsteer.report import summarise
from fedsteer.report.paper_table import lines_of, paper_table_markdown

PAPER = {"x": {"fedstale": 0.309, "fedavg": 0.314}}


def made(folder: Path, label: str, seed: int = 0, **result: Any) -> None:
    with closing(RecordWriter(folder / label / f"seed-{seed}")) as records:
        rule = {"label": label, "name": label.partition("-")[0]}
        environment = {"device": "Some GPU", "torch": "2.0"}
        records.manifest(
            {"rule": rule, "seed": seed, "experiment": {"name": "x"}, "version": "9"}
            | {"environment": environment, "created": f"2026-01-01T00:0{seed}:00+00:00"}
        )
        if result:
            records.finish(result)


def test_the_setting_of_a_family_is_chosen_on_held_out_images(tmp_path: Path) -> None:
    made(tmp_path, "fedstale-0.5", accuracy=0.9, held_out_accuracy=0.1)
    made(tmp_path, "fedstale-0.9", accuracy=0.4, held_out_accuracy=0.3)
    runs = find_runs(tmp_path)
    (line,) = lines_of(summarise(runs), PAPER)
    assert (line.label, line.row.label) == ("fedstale", "fedstale-0.9")
    page = paper_table_markdown(find_runs(tmp_path), {"paper": PAPER})
    row = "| x | fedstale (fedstale-0.9, chosen on held-out images) | 40.0 | 30.9 | +9.1 |"
    assert row in page
    assert (
        "held-out accuracy of fedstale-0.5 10.0 (test 90.0), fedstale-0.9 30.0 (test 40.0)" in page
    )


def test_without_held_out_images_nothing_is_chosen(tmp_path: Path) -> None:
    made(tmp_path, "fedstale-0.5", accuracy=0.9, held_out_accuracy=0.1)
    made(tmp_path, "fedstale-0.9", accuracy=0.4)
    runs = find_runs(tmp_path)
    lines = lines_of(summarise(runs), PAPER)
    assert [(line.label, line.paper) for line in lines] == [
        ("fedstale-0.5", None),
        ("fedstale-0.9", None),
    ]
    assert not any(line.settings for line in lines)


def test_costs_intervals_and_unfinished_runs_are_shown(tmp_path: Path) -> None:
    costs = {"warm_up_rounds": 508, "warm_up_uploads": 500, "bytes_up": 3e9, "server_bytes": 183e6}
    for seed, accuracy in ((0, 0.30), (1, 0.32)):
        made(tmp_path, "fedavg", seed, accuracy=accuracy, seconds=30.0)
        made(tmp_path, "fedsteer", seed, accuracy=accuracy + 0.2, seconds=60.0, **costs)
    made(tmp_path, "fedavg", 2)
    page = paper_table_markdown(
        find_runs(tmp_path),
        {"title": "T", "about": "A.", "commands": ["fedsteer x"], "paper": PAPER},
    )
    assert page.splitlines()[:8] == [
        "# T",
        "",
        "A.",
        "",
        "| experiment | rule | ours % | paper % | difference | vs fedavg | warm-up rounds "
        "| warm-up uploads | sent up | memory | seeds |",
        "| :-- | :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| x | fedsteer | 51.0 ± 12.7 | - | - | +20.0 ± 0.0 | 508 | 500 | 3.00 GB | 183 MB | 2 |",
        "| x | fedavg | 31.0 ± 12.7 | 31.4 | -0.4 | - | - | - | - | - | 2 of 3 |",
    ]
    assert "    fedsteer x\n\n5 runs, fedsteer 9, torch 2.0, Some GPU." in page


def test_time_is_from_the_first_start_to_the_last_end(tmp_path: Path) -> None:
    made(tmp_path, "fedavg", 0, accuracy=0.3, seconds=10.0)
    made(tmp_path, "fedavg", 1, accuracy=0.3, seconds=20.0)
    page = paper_table_markdown(find_runs(tmp_path), {})
    assert "80 s from the first start to the last end." in page


def test_the_archive_alone_gives_the_same_page(tmp_path: Path) -> None:
    for seed in (0, 1):
        made(tmp_path / "runs", "fedavg", seed, accuracy=0.3 + seed / 70, seconds=1.0)
    sheet = {"title": "T", "paper": PAPER}
    packed = tmp_path / "records.tar.xz"
    pack_records([tmp_path / "runs"], packed, sheet=sheet)
    again = read_sheet(packed)
    assert again == sheet
    assert paper_table_markdown(find_runs(packed), again) == paper_table_markdown(
        find_runs(tmp_path / "runs"), sheet
    )
