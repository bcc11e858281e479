"""The table: hand-computed numbers, exact text, and records that lack things."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.records import find_runs
from fedsteer.report import summarise, to_csv, to_markdown, to_text
from fedsteer.report.summary import Summary
from fedsteer.report.tables import count, duration, size
from tests.report.made_records import make_comparison, make_result, make_run


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two rules, three seeds, numbers one can check on paper."""
    for seed, (base, ours) in enumerate([(0.70, 0.74), (0.72, 0.78), (0.74, 0.79)]):
        common = {"bytes_up": 2_000_000, "bytes_down": 3_000_000, "seconds": 30, "uploads": 90}
        make_result(
            tmp_path / "fedavg" / f"seed-{seed}",
            "fedavg",
            seed,
            {"accuracy": base, "group_accuracy": {"rare": base - 0.1, "common": base + 0.1}}
            | {"client_accuracy": {"mean": base, "std": 0.1, "p10": 0.5}, "server_bytes": 19240}
            | {"warm_up_rounds": 0, "warm_up_uploads": 0}
            | common,
        )
        make_result(
            tmp_path / "fedsteer" / f"seed-{seed}",
            "fedsteer (practical)",
            seed,
            {"accuracy": ours, "group_accuracy": {"rare": ours, "common": ours}}
            | {"client_accuracy": {"mean": ours, "std": 0.05, "p10": 0.7}, "server_bytes": 211640}
            | {"warm_up_rounds": 5 + (seed == 2), "warm_up_uploads": 41}
            | common,
        )
    return tmp_path


def table(folder: Path, baseline: str | None = None) -> Summary:
    return summarise(find_runs(folder), baseline)


def test_best_rule_first_with_intervals(small: Path) -> None:
    ours, base = table(small).rows
    assert (ours.label, base.label) == ("fedsteer (practical)", "fedavg")
    assert base.accuracy is not None and base.accuracy.half is not None
    assert base.accuracy.mean == pytest.approx(0.72)
    assert base.accuracy.half == pytest.approx(4.3027 * 0.02 / 3**0.5, rel=1e-4)
    assert base.estimates["difference"] is None


def test_difference_is_paired_by_seed(small: Path) -> None:
    # 0.04, 0.06, 0.05: mean 0.05, s = 0.01; unpaired, the interval would be far wider
    difference = table(small).rows[0].estimates["difference"]
    assert difference is not None and difference.half is not None
    assert difference.mean == pytest.approx(0.05)
    assert difference.half == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)
    assert difference.count == 3


def test_only_common_seeds_are_paired(small: Path) -> None:
    make_result(small / "fedsteer" / "seed-7", "fedsteer (practical)", 7, {"accuracy": 0.1})
    ours = table(small).rows[-1]
    assert [run.seed for run in ours.counted] == [0, 1, 2, 7]
    assert ours.estimates["difference"] is not None and ours.estimates["difference"].count == 3


def test_markdown(small: Path) -> None:
    assert to_markdown(table(small)) == (
        "| rule | accuracy % | vs fedavg | rare % | common % | client spread | worst tenth "
        "| memory | sent up | sent down | warm-up rounds | warm-up uploads | time | seeds |\n"
        "| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n"
        "| fedsteer (practical) | 77.0 ± 6.6 | +5.0 ± 2.5 | 77.0 ± 6.6 | 77.0 ± 6.6 | 5.0 ± 0.0 "
        "| 70.0 ± 0.0 | 212 kB | 2.00 MB | 3.00 MB | 5.3 | 41 | 30 s | 3 |\n"
        "| fedavg | 72.0 ± 5.0 | - | 62.0 ± 5.0 | 82.0 ± 5.0 | 10.0 ± 0.0 "
        "| 50.0 ± 0.0 | 19.2 kB | 2.00 MB | 3.00 MB | 0 | 0 | 30 s | 3 |\n"
        "\n"
        "Means over seeds; ± is the 95 % interval (Student's t). "
        "Differences to fedavg are in points, paired by seed.\n"
    )


def test_text_leaves_out_columns_that_do_not_fit(small: Path) -> None:
    heading = to_text(table(small), width=80).splitlines()[0]
    assert heading.split("  ")[-1] == "seeds" and len(heading) <= 80
    assert "memory" in heading and "warm-up rounds" in heading and "vs fedavg" in heading
    assert to_text(table(small), width=55) == (
        "rule                  accuracy %   vs fedavg  seeds\n"
        "--------------------  ----------  ----------  -----\n"
        "fedsteer (practical)  77.0 ± 6.6  +5.0 ± 2.5      3\n"
        "fedavg                72.0 ± 5.0           -      3\n"
        "\n"
        "Means over seeds; ± is the 95 % interval (Student's t).\n"
        "Differences to fedavg are in points, paired by seed. No\n"
        "room here for rare %, common %, client spread, worst\n"
        "tenth, memory, sent up, sent down, warm-up rounds,\n"
        "warm-up uploads, time.\n"
    )


def test_text_without_width_has_every_column(small: Path) -> None:
    heading = to_text(table(small)).splitlines()[0]
    for word in ("rare %", "client spread", "memory", "sent down", "warm-up uploads", "time"):
        assert word in heading


def test_csv(tmp_path: Path) -> None:
    make_result(tmp_path / "a", "fedavg", 0, {"accuracy": 0.7, "bytes_up": 5})
    make_result(tmp_path / "b", 'one, "two"', 0, {"accuracy": 0.75})
    text = to_csv(table(tmp_path))
    head, first, second = text.splitlines()
    assert head.startswith(
        "experiment,label,rule,seeds,unfinished,pairs,accuracy,accuracy_half,"
        "difference,difference_half,late,late_half,late_difference,"
    )
    assert first.startswith(',"one, ""two""","one,",1,0,1,0.75,,0.05,,')
    assert second.startswith(",fedavg,fedavg,1,0,0,0.7,,,,")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["bytes_up"] for row in rows] == ["", "5.0"]


def test_plain_data_has_one_key_per_number(small: Path) -> None:
    record = table(small).records()[0]
    assert record["accuracy_rare"] == pytest.approx(0.77)
    assert record["warm_up_rounds"] == pytest.approx(16 / 3)
    assert record["seeds"] == record["pairs"] == 3


def test_baseline_by_label_or_by_name(small: Path) -> None:
    assert table(small, "fedsteer (practical)").rows[1].estimates["difference"] is not None
    found = table(small, "fedsteer")
    assert found.baseline == "fedsteer (practical)"
    assert found.rows[1].estimates["difference"] is not None
    assert found.rows[1].estimates["difference"].mean == pytest.approx(-0.05)


def test_unknown_baseline_names_the_nearest(small: Path) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'fedavg'"):
        table(small, "fedavgg")


def test_without_fedavg_there_are_no_differences(tmp_path: Path) -> None:
    make_result(tmp_path, "mifa", 0, {"accuracy": 0.5})
    found = table(tmp_path)
    assert found.baseline is None
    assert "vs" not in to_text(found)


def test_full_participation_is_not_fedavg(tmp_path: Path) -> None:
    make_comparison(tmp_path / "runs", ["mifa", "full participation"], seeds=2, rounds=6)
    assert table(tmp_path).baseline is None
    assert table(tmp_path, "full participation").baseline == "full participation"
    make_comparison(tmp_path / "more", ["fedavg"], seeds=2, rounds=6)
    assert table(tmp_path).baseline == "fedavg"


def test_unfinished_runs_are_named_and_not_counted(small: Path) -> None:
    make_result(small / "fedavg" / "seed-3", "fedavg", 3, None)
    found = table(small)
    assert found.rows[1].unfinished == 1 and found.rows[1].finished == 3
    assert "1 unfinished run is not counted." in to_markdown(found)


def test_rule_with_no_finished_run_has_a_row_of_dashes(tmp_path: Path) -> None:
    make_result(tmp_path, "mifa", 0, None)
    assert to_text(table(tmp_path)).splitlines()[2].split() == ["mifa", "0"]


def test_two_experiments_are_two_tables_in_one(tmp_path: Path) -> None:
    for name in ("digits", "fashion"):
        make_comparison(tmp_path / name, ["fedavg", "mifa"], seeds=2, rounds=6, name=name)
    found = table(tmp_path)
    assert [row.experiment for row in found.rows] == ["digits"] * 2 + ["fashion"] * 2
    assert to_markdown(found).startswith("| experiment | rule |")
    assert all(row.estimates["difference"] for row in found.rows if row.label == "mifa")


def test_same_name_in_two_folders_gives_two_experiments(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        make_comparison(tmp_path / folder, ["fedavg"], seeds=1, rounds=4)
    found = table(tmp_path)
    assert found.experiments == ("digits (first)", "digits (second)")


def test_runs_with_other_settings_are_not_paired(tmp_path: Path) -> None:
    make_comparison(tmp_path / "a", ["fedavg"], seeds=2, rounds=6)
    make_comparison(tmp_path / "b", ["mifa"], seeds=2, rounds=8)
    found = table(tmp_path)
    assert [(row.experiment, row.label, row.estimates["difference"]) for row in found.rows] == [
        ("digits (run.rounds=6)", "fedavg", None),
        ("digits (run.rounds=8)", "mifa", None),
    ]


def test_runs_whose_clients_hold_other_points_are_not_paired(tmp_path: Path) -> None:
    make_comparison(tmp_path, ["fedavg", "mifa"], seeds=3, rounds=6)
    manifest = tmp_path / "rule-1" / "seed-1" / "manifest.json"
    record = json.loads(manifest.read_text())
    record["clients"]["holds"][0][0] += 1
    manifest.write_text(json.dumps(record))
    (difference,) = [
        row.estimates["difference"] for row in table(tmp_path).rows if row.label == "mifa"
    ]
    assert difference is not None and difference.count == 2
    del record["clients"]["holds"]  # unknown in one of the two
    manifest.write_text(json.dumps(record))
    (difference,) = [
        row.estimates["difference"] for row in table(tmp_path).rows if row.label == "mifa"
    ]
    assert difference is not None and difference.count == 3


def test_a_folder_named_twice_counts_once(small: Path) -> None:
    assert summarise(find_runs(small, small / "fedavg")) == table(small)


def test_two_runs_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "one" / "a", seed=1, rounds=2)
    make_run(tmp_path / "one" / "b", seed=1, rounds=2)
    assert table(tmp_path).experiments == ("digits (a)", "digits (b)")
    make_run(tmp_path / "two" / "a", seed=1, rounds=2)
    with pytest.raises(DataError, match="same rule with the same seed"):
        table(tmp_path)


@pytest.mark.parametrize("checksums", [("aa", "bb"), ("aa", "aa"), (None, None)])
def test_runs_on_other_traces_are_other_experiments(
    tmp_path: Path, checksums: tuple[str | None, str | None]
) -> None:
    """By their contents or, if these are unknown, by their file names."""
    for seed, checksum in enumerate(checksums):
        manifest = make_run(tmp_path / f"run-{seed}", seed=seed, rounds=4) / "manifest.json"
        record = json.loads(manifest.read_text())
        record["experiment"].setdefault("participation", {})["trace"] = f"{seed}.csv"
        manifest.write_text(json.dumps(record | ({} if checksum is None else {"trace": checksum})))
    assert len(table(tmp_path).experiments) == (1 if checksums == ("aa", "aa") else 2)


def test_one_run_with_other_settings_leaves_the_others_together(tmp_path: Path) -> None:
    for rule in ("fedavg", "mifa"):
        for seed in (0, 1):
            make_run(tmp_path / f"{rule}{seed}", rule, seed=seed, rounds=4)
    make_run(tmp_path / "other", "fedavg", seed=0, rounds=5)
    found = {(row.experiment, row.label): row.finished for row in table(tmp_path).rows}
    assert found == {
        ("digits (run.rounds=4)", "fedavg"): 2,
        ("digits (run.rounds=4)", "mifa"): 2,
        ("digits (run.rounds=5)", "fedavg"): 1,
    }


def test_no_runs_is_an_error() -> None:
    with pytest.raises(DataError, match="no runs"):
        summarise([])


def test_seeds_may_be_unknown(tmp_path: Path) -> None:
    for place, accuracy in enumerate((0.5, 0.7)):
        make_result(tmp_path / str(place), "fedavg", None, {"accuracy": accuracy})
    row = table(tmp_path).rows[0]
    assert row.finished == 2
    assert row.accuracy is not None and row.accuracy.mean == pytest.approx(0.6)


def test_labels_cannot_break_a_table_or_steer_a_terminal(tmp_path: Path) -> None:
    make_result(tmp_path, "a|b\x1b[31m\n<script>", 0, {"accuracy": 0.5})
    found = table(tmp_path)
    assert "| a\\|b\ufffd[31m &lt;script> |" in to_markdown(found)
    assert "\x1b" not in to_text(found) and len(to_text(found).splitlines()) == 5


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.50 kB"), (84e6, "84.0 MB"), (999.6e6, "1.00 GB"),
     (3.2e12, "3.20 TB"), (5e15, "5000 TB")],
)  # fmt: skip
def test_sizes(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(3.5, "3.5 s"), (42, "42 s"), (300, "5.0 min"), (9000, "2.5 h")]
)
def test_durations(value: float, text: str) -> None:
    assert duration(value) == text


@pytest.mark.parametrize(("value", "text"), [(5, "5"), (5.33, "5.3"), (137.6, "138")])
def test_counts(value: float, text: str) -> None:
    assert count(value) == text


def test_the_last_third_is_the_mean_of_its_evaluations(tmp_path: Path) -> None:
    for rule, lift in (("fedavg", 0.0), ("fedsteer", 0.25)):
        for seed in (0, 1):
            rounds = [
                {"round": t, "training_round": t, "accuracy": max(t - 7, 0) * 0.5 + lift}
                for t in range(1, 10)
            ]
            folder = tmp_path / rule / f"seed-{seed}"
            make_result(folder, rule, seed, {"accuracy": 0.9})
            lines = "".join(json.dumps(row) + "\n" for row in rounds)
            (folder / "rounds.jsonl").write_text(lines)
    by_label = {row.label: row for row in summarise(find_runs(tmp_path)).rows}
    assert by_label["fedavg"].estimates["late"].mean == pytest.approx(0.5)
    assert by_label["fedsteer"].estimates["late_difference"].mean == pytest.approx(0.25)
    assert by_label["fedavg"].estimates["late_difference"] is None
    assert "last third vs fedavg" in to_markdown(summarise(find_runs(tmp_path)))


def test_the_baseline_of_the_runs_is_that_of_the_report(tmp_path: Path) -> None:
    """As they were compared, so they are reported."""
    for rule, accuracy in (("fedavg", 0.5), ("mifa", 0.4), ("fedvarp", 0.6)):
        run = tmp_path / rule / "seed-0"
        run.mkdir(parents=True)
        manifest = {
            "rule": {"label": rule, "name": rule},
            "seed": 0,
            "experiment": {"name": "x", "run": {"baseline": "mifa"}},
        }
        (run / "manifest.json").write_text(json.dumps(manifest))
        (run / "result.json").write_text(json.dumps({"finished": True, "accuracy": accuracy}))
    runs = find_runs(tmp_path)
    assert summarise(runs).baseline == "mifa"
    assert summarise(runs, baseline="fedavg").baseline == "fedavg"


def test_failed_runs_are_named_with_their_reason(tmp_path: Path) -> None:
    for seed in range(5):
        folder = make_run(tmp_path / f"seed-{seed}", seed=seed, finish=not seed)
        if seed:
            reason = json.dumps({"reason": f"training diverges in round {seed}"})
            (folder / "failure.json").write_text(reason)
    text = " ".join(to_text(summarise(find_runs(tmp_path))).split())
    assert "4 unfinished runs are not counted." in text
    assert "Failed: fedavg, seed 1: training diverges in round 1; fedavg, seed 2:" in text
    assert "round 3; and 1 more." in text
