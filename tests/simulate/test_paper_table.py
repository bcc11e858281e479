"""Every table and figure of the paper runs end to end, small, and says what the paper said."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsteer.cli import main
from fedsteer.errors import ConfigurationError
from fedsteer.records import find_runs, read_sheet
from fedsteer.rules.fedsteer.options import FedSteerOptions
from fedsteer.simulate.cells import find_rule
from fedsteer.simulate.compare import compare_cells
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.experiment_files import shipped_experiments
from fedsteer.simulate.paper_table import load_paper_table
from fedsteer.simulate.world import build_world
from fedsteer.training.models import make_network

NAMES = [
    "adaptive",
    "coreset-size",
    "curves",
    "differences",
    "frequency",
    "heatmap",
    "matrix",
    "n500",
    "reconstruction",
    "table1",
    "table2",
]
QUICK = {"reconstruction", "table2"}


def test_all_of_them_are_shipped() -> None:
    assert list(shipped_experiments("paper")) == NAMES


@pytest.mark.parametrize("reading", ["paper", "authors"])
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_can_be_built(name: str, reading: str, tmp_path: Path) -> None:
    if reading == "authors" and name in ("differences", "matrix"):
        pytest.skip("has no other reading")
    sheet = load_paper_table(name, reading=reading)
    assert sheet.cells(tmp_path)
    for published in sheet.published.values():
        labels = {cell.rule.label for cell in sheet.cells(tmp_path)}
        for label in published:
            assert any(known == label or known.startswith(f"{label}-") for known in labels), label


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES]
)
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["reproduce", name, "--smoke", "--seeds", "1", "--quiet", "--out", str(out)]
    assert main([*command, "--jobs", "1"]) == 0
    heading = "| rule | paper | half |" if name == "matrix" else "| experiment | rule | ours % |"
    assert heading in capsys.readouterr().out
    assert (out / "table.md").exists() and (out / "report.html").stat().st_size > 100_000
    assert all(run.finished for run in find_runs(out))
    assert "<svg" in (out / "figure.svg").read_text()
    sheet = read_sheet(out)
    assert sheet is not None and sheet["commands"] == [
        f"fedsteer reproduce {name} --seeds 1 --smoke"
    ]
    packed = tmp_path / "records.tar.xz"
    assert main(["pack", str(out), "--out", str(packed)]) == 0
    assert main(["report", str(packed), "--format", "published", "--out", str(tmp_path)]) == 0
    for file in ("table.md", "figure.svg"):
        assert (tmp_path / file).read_bytes() == (out / file).read_bytes(), file


def test_authors_reading_flips_what_the_code_does_differently() -> None:
    paper, theirs = (
        load_paper_table("table1", reading=reading, only="fashion-mnist-0.9").experiments[0]
        for reading in ("paper", "authors")
    )
    assert (paper.server.rate, theirs.server.rate) == (0.5, 1.0)
    assert (paper.training.batch, theirs.training.batch) == (64, 0)
    assert theirs.model.options["head"] == "softmax"
    assert theirs.options["fedsteer"]["basis"] == "mean"
    assert theirs.name == "fashion-mnist-0.9-authors"


def test_unknown_names() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'table1'"):
        load_paper_table("tabel1")
    with pytest.raises(ConfigurationError, match="unknown column 'minst'"):
        load_paper_table("table1", only="minst")
    with pytest.raises(ConfigurationError, match="unknown reading"):
        load_paper_table("table1", reading="author")


def test_the_practical_preset_and_the_equal_memory_rival_are_in_every_table(tmp_path: Path) -> None:
    for name in ("table1", "table2", "n500", "adaptive", "frequency"):
        for experiment in load_paper_table(name).experiments:
            assert {"cluster_fedvarp", "fedsteer:practical"} <= set(experiment.rules), name
            options = experiment.options
            columns = options.get("fedsteer", {}).get("core_size", FedSteerOptions().core_size)
            assert options["cluster_fedvarp"]["cluster_count"] == columns, name


def test_a_column_keeps_its_own_settings_in_the_authors_reading() -> None:
    partition = load_paper_table("n500", reading="authors").experiments[0].partition
    assert (partition.clients, partition.points) == (500, 60), "500 x 80 points do not exist"
    assert load_paper_table("table1", reading="authors").experiments[0].partition.points == 80


def test_differences_go_from_the_text_to_the_code_and_back() -> None:
    columns = {one.name: one for one in load_paper_table("differences").experiments}
    text, code = columns["text"], columns["code"]
    assert code == replace(
        load_paper_table("table1", only="emnist-0.9", reading="authors").experiments[0],
        name=code.name,
        title=code.title,
        rules=code.rules,
        variants=code.variants,
        seeds=code.seeds,
    )
    for name, one in columns.items():
        start = text if name.startswith("text") else code
        flat, base = flattened(one), flattened(start)
        changed = {key for key in base.keys() | flat.keys() if base.get(key) != flat.get(key)}
        changed -= {"name", "title", "rules"}
        assert (len(changed) in (1, 2)) == (one is not start), (name, changed)


def test_one_column_by_its_name_or_all_that_begin_so() -> None:
    def columns(only: str) -> list[str]:
        return [one.name for one in load_paper_table("differences", only=only).experiments]

    assert columns("text") == ["text"] and len(columns("text-")) == 9
    with pytest.raises(ConfigurationError, match="differences has no other reading"):
        load_paper_table("differences", reading="authors")


def flattened(experiment: Experiment) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{path}.{key}" if path else key, inner)
        else:
            found[path] = value

    walk("", asdict(experiment))
    return found


def test_the_record_says_what_the_table_needs() -> None:
    record = load_paper_table("table2").record("fedsteer reproduce table2")
    assert record["name"] == "table2" and record["commands"] == ["fedsteer reproduce table2"]
    assert record["about"].startswith("Table 2: core-set search with 20 random swap-in candidates")
    assert record["paper"]["fashion-mnist-0.9"]["fedsteer-nsub20"] == 0.537
    assert record["seeds"] == 8 and "fedsteer (practical)" in record["labels"]
    small = load_paper_table("table2", smoke=True).record()
    assert small["paper"] == {"fashion-mnist-0.9": {}, "fashion-mnist-0.7": {}}
    assert "made-up images" in small["about"], "nothing to be compared with the paper"
    assert {load_paper_table(name).figure for name in NAMES} == {
        "changes",
        "curves",
        "core-size",
        "heatmap",
        "errors",
        "matrix",
    }


def test_a_column_may_have_seeds_and_rules_of_its_own() -> None:
    columns = {one.name: one for one in load_paper_table("matrix").experiments}
    assert (columns["paper"].seeds, columns["harsh"].seeds) == (5, 10)
    assert "fedsteer" in columns["paper"].rules and "fedsteer" not in columns["thousand"].rules
    assert not any("full" in one.rules for one in columns.values()), "only its practical form"
    assert {one.server.average for one in columns.values()} == {10}
    assert all(one.seeds == 3 for one in load_paper_table("matrix", seeds=3).experiments)


def test_full_participation_is_the_same_run_below_one_ceiling(tmp_path: Path) -> None:
    table = load_paper_table("matrix")
    columns = {one.name: one for one in table.experiments}
    below = ("harsh", "bursts", "day-night", "skype-10", "skype-30")
    fashion = ("fashion-bursts", "fashion-skype-30")
    assert table.record()["ceilings"] == {
        name: "half" if name == "harsh" else "fashion-paper" if name in fashion else "paper"
        for name in (*below, *fashion)
    }
    for name, one in columns.items():
        assert ("full:practical" in one.rules) == (name not in table.ceilings)
    for name, ceiling in table.ceilings.items():
        one, other = columns[name], columns[ceiling]
        same = {key: getattr(other, key) for key in ("name", "title", "rules", "participation")}
        assert replace(one, **same) == other, "they differ in nothing else"
    settings = {"rules": ["full:practical"]}
    pair = load_paper_table("matrix", only="paper,bursts", smoke=True, settings=settings)
    runs = compare_cells(pair.cells(tmp_path), jobs=1)
    first, second = (run.read("rounds.jsonl") for run in runs if run.seed == 0)
    assert first == second, "so it need not run again"


def test_only_takes_names_and_how_names_begin() -> None:
    def names(only: str) -> list[str]:
        return [one.name for one in load_paper_table("matrix", only=only).experiments]

    assert names("harsh") == ["harsh"] and names("skype") == ["skype-10", "skype-30"]
    assert names("skype-30, paper,fashion-h") == ["paper", "skype-30", "fashion-half"]
    assert len(names("p,paper,d")) == 3, "each column once"
    for wrong in ("bursts,skipe-10", "bursts,", ""):
        with pytest.raises(ConfigurationError, match="unknown column"):
            load_paper_table("matrix", only=wrong)


def test_a_swap_keeps_its_share_of_the_rounds() -> None:
    def swap(**options: Any) -> int | None:
        (drift,) = load_paper_table("matrix", only="drift", **options).experiments
        after: int | None = drift.partition.swap_after  # type: ignore[attr-defined]
        return after

    assert swap() == 75 and swap(smoke=True) == 2
    assert swap(settings={"run.rounds": 20}) == 10
    assert swap(settings={"run.rounds": 20, "partition.swap_after": 3}) == 3
    with pytest.raises(ConfigurationError, match="after the last round"):
        swap(settings={"run.rounds": 1})


def test_columns_of_an_absent_trace_are_left_out_unless_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDSTEER_DATA", str(tmp_path))
    command = ["reproduce", "matrix", "--smoke", "--seeds", "1", "--quiet", "--only"]
    out = ["--out", str(tmp_path / "out")]
    assert main([*command, "skype", *out]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedsteer: skype-10 needs SKYPE.avt, which is neither here nor")
    assert said.count("\n") == 1 and not (tmp_path / "out").exists()
    table = load_paper_table("matrix", only="fashion")
    assert list(table.absent_files()) == ["fashion-skype-30"]
    kept = table.without(table.absent_files())
    assert [one.name for one in kept.experiments] == list(kept.published)
    assert kept.published.keys() == {"fashion-paper", "fashion-half", "fashion-bursts"}
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "SKYPE.avt").write_text("a 1 0 9\n" * 100)
    assert not load_paper_table("matrix").absent_files()
    world = build_world(load_paper_table("matrix", only="skype-30", smoke=True).experiments[0], 0)
    assert world.participation.clients == 12


def test_a_smoke_run_keeps_sizes_apart() -> None:
    variants = load_paper_table("coreset-size", smoke=True).experiments[0].variants
    sizes = [entry["core_size"] for entry in variants.values() if entry["ridge"] == 0.5]
    assert sizes == sorted(set(sizes)) and sizes[-1] == 12


def test_equally_frequent_clients_are_drawn(tmp_path: Path) -> None:
    column = load_paper_table("frequency", only="emnist-0.9").experiments[0]
    entry = find_rule(column, "fedsteer-frequent")
    odds = np.where(np.arange(100) % 2, 0.16, 0.04)
    chosen = []
    for seed in (0, 1):
        table = entry.build(column, seed, odds).options.frequencies  # type: ignore[attr-defined]
        ranked = sorted(table, key=lambda client: -table[client])[:10]
        assert all(client % 2 for client in ranked), "the frequent half"
        chosen.append(ranked)
    assert chosen[0] != chosen[1]
    assert any(client >= 50 for client in chosen[0]), "not the lowest numbers"


def test_columns_of_two_calls_end_in_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for only in ("fashion-mnist-0.9", "fashion-mnist-0.7"):
        command = ["reproduce", "table2", "--smoke", "--seeds", "1", "--only", only, "--quiet"]
        assert main([*command, "--jobs", "1", "--out", str(tmp_path)]) == 0
    table = (tmp_path / "table.md").read_text()
    assert "| fashion-mnist-0.9 | fedavg |" in table and "| fashion-mnist-0.7 | fedavg |" in table
    sheet = read_sheet(tmp_path)
    assert sheet is not None and len(sheet["commands"]) == 2


def test_two_tables_in_one_folder_share_their_runs_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--smoke", "--only", "fashion-mnist-0.9", "--quiet", "--jobs", "1"]
    command = [*few, "--out", str(tmp_path / "both")]
    assert main(["reproduce", "table2", "--seeds", "2", *command]) == 0
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "both").glob("*/fed*/*/result.json")}
    assert main(["reproduce", "frequency", "--seeds", "1", *command]) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in times.items()), "not run again"
    table = (tmp_path / "both" / "table.md").read_text()
    assert "fedsteer-random" in table and "nsub20" not in table and "| 2 |" not in table
    assert main(["pack", str(tmp_path / "both"), "--out", str(tmp_path / "one.tar.xz")]) == 0
    assert "6 runs" in capsys.readouterr().out.splitlines()[-1]
    assert len(find_runs(tmp_path / "one.tar.xz")) == 6, "one seed of six rules"


@pytest.mark.parametrize("only", ["emnist-0.9", "fashion-mnist-0.9", "cifar-10-0.9"])
def test_the_authors_search_on_the_last_bias(only: str) -> None:
    experiment = load_paper_table("table1", reading="authors", only=only).experiments[0]
    shape = (3, 32, 32) if "cifar" in only else (1, 28, 28)
    classes = 47 if "emnist" in only and "fashion" not in only else 10
    network = make_network(experiment.model.name, shape, classes, experiment.model.options)
    first, end = experiment.options["fedsteer"]["search_columns"]
    assert (first, end) == (network.dim - classes, network.dim)
