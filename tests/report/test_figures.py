"""Figures from records: well-formed, complete, the same bytes every time, the right numbers."""

from __future__ import annotations

import base64
import io
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from fedsteer.cli import main
from fedsteer.errors import ConfigurationError, DataError
from fedsteer.records import RecordWriter, Run, find_runs
from fedsteer.report import files_of, summarise, to_markdown, write_files, write_page
from fedsteer.report.figures import table_of
from fedsteer.report.figures.accuracy import to_svg
from fedsteer.report.figures.coordinates import heatmap_figure
from fedsteer.report.figures.errors import errors_figure
from fedsteer.report.figures.final_accuracy import core_size_figure
from fedsteer.report.styles import LIGHT
from tests.report.made_records import make_comparison

COLOURS = {"fedsteer": LIGHT[0], "fedavg": LIGHT[1], "mifa": LIGHT[3]}


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if "text" in node.tag]


def made(folder: Path, label: str, seed: int, accuracies: list[float]) -> None:
    with closing(RecordWriter(folder / label.replace("<", "") / f"seed-{seed}")) as records:
        records.manifest({"rule": {"label": label, "name": label}, "seed": seed})
        for number, accuracy in enumerate(accuracies, start=1):
            row = {"round": number, "phase": "train", "training_round": number}
            records.append("rounds", row | {"accuracy": accuracy})
        records.finish({"finished": True, "accuracy": accuracies[-1]})


def test_every_rule_is_drawn_and_named_with_its_last_accuracy(tmp_path: Path) -> None:
    for seed in (0, 1):
        made(tmp_path, "fedavg", seed, [0.1, 0.4])
        made(tmp_path, "fed<b> $x$", seed, [0.2, 0.6])
    drawn = to_svg(find_runs(tmp_path), "Accuracy & <title>")
    words = texts(drawn)
    assert {"Accuracy & <title>", "training rounds", "test accuracy in %"} <= set(words)
    assert [word for word in words if "fed" in word] == ["60.0  fed<b> $x$", "40.0  fedavg"]
    assert COLOURS["fedavg"] in drawn
    assert drawn == to_svg(find_runs(tmp_path), "Accuracy & <title>")


def test_a_picture_does_not_depend_on_the_settings_of_matplotlib(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    made(tmp_path, "fedavg", 0, [0.1, 0.4])
    drawn = to_svg(find_runs(tmp_path), "A")
    with matplotlib.rc_context({"lines.linewidth": 9, "svg.fonttype": "path", "font.size": 20}):
        assert to_svg(find_runs(tmp_path), "A") == drawn
        assert matplotlib.rcParams["font.size"] == 20


def test_letters_that_the_font_lacks_are_drawn_without_a_warning(tmp_path: Path) -> None:
    made(tmp_path, "规则", 0, [0.1, 0.4])
    assert "40.0  规则" in texts(to_svg(find_runs(tmp_path), "A"))


def test_a_rule_far_behind_is_named_instead_of_pressing_the_others_together(tmp_path: Path) -> None:
    made(tmp_path, "good", 0, [0.1, 0.6, 0.7, 0.75])
    made(tmp_path, "better", 0, [0.2, 0.65, 0.72, 0.78])
    made(tmp_path, "lost", 0, [0.1, 0.1, 0.12, 0.11])
    words = texts(to_svg(find_runs(tmp_path), "Accuracy"))
    assert {"below 50: lost", "50", "80"} <= set(words) and not {"40", "90"} & set(words)


def test_a_rule_that_falls_at_the_end_is_shown_or_named(tmp_path: Path) -> None:
    made(tmp_path, "steady", 0, [0.8, 0.8, 0.85, 0.9])
    made(tmp_path, "slips", 0, [0.8, 0.8, 0.85, 0.65])
    made(tmp_path, "collapses", 0, [0.8, 0.8, 0.85, 0.1])
    assert "below 60: collapses" in texts(to_svg(find_runs(tmp_path), "A"))


def test_an_axis_that_one_experiment_lacks(tmp_path: Path) -> None:
    for name, sent in (("counted", {"bytes_up": 10, "bytes_down": 10}), ("unknown", {})):
        with closing(RecordWriter(tmp_path / name / "fedavg" / "seed-0")) as records:
            rule = {"label": "fedavg", "name": "fedavg"}
            records.manifest({"rule": rule, "seed": 0, "experiment": {"name": name}})
            for number in (1, 2, 3):
                row = {"round": number, "phase": "train", "training_round": number}
                records.append("rounds", row | {"accuracy": 0.5} | sent)
    words = texts(to_svg(find_runs(tmp_path), "A", ("all", "sent")))
    assert words.count("all rounds, warm-up included") == 2
    assert words.count("bytes sent, both ways") == 1


def test_a_single_evaluation_can_be_drawn_over_everything(tmp_path: Path) -> None:
    with closing(RecordWriter(tmp_path)) as records:
        records.manifest({"rule": {"label": "fedavg", "name": "fedavg"}, "seed": 0})
        row = {"training_round": 1, "accuracy": 0.5, "bytes_up": 10, "bytes_down": 10}
        records.append("rounds", row)
    words = texts(to_svg([Run(tmp_path)], "A", ("train", "all", "sent")))
    assert {"50.0  fedavg", "bytes sent, both ways"} <= set(words)


def test_a_picture_without_evaluations_is_an_error(tmp_path: Path) -> None:
    with closing(RecordWriter(tmp_path / "run")) as records:
        records.manifest({"rule": {"label": "fedavg", "name": "fedavg"}, "seed": 0})
    with pytest.raises(DataError, match="nothing to draw"):
        to_svg([Run(tmp_path / "run")], "empty")


def test_several_experiments_get_a_panel_each_and_rules_keep_their_look(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_comparison(tmp_path / name, ["fedavg", "mifa"], 2, 8, 6, name=name)
    drawn = to_svg(find_runs(tmp_path), "Both", ("all", "sent"))
    words = texts(drawn)
    assert words.count("one") == words.count("two") == 2, "over rounds and over bytes"
    assert words.count("fedavg") == words.count("mifa") == 1, "one legend"
    lines = [drawn.count(f"stroke: {COLOURS[rule]}") for rule in ("fedavg", "mifa")]
    assert lines == [5, 5], "four panels and the legend"
    turned = texts(to_svg(find_runs(tmp_path), "Both", order=["two", "absent"]))
    assert turned.index("two") < turned.index("one")
    assert any("sent, both ways" in word for word in words)


def sized(folder: Path, columns: int, ridge: float, seed: int, accuracy: float) -> None:
    label = f"k{columns}-ridge{ridge:g}"
    with closing(RecordWriter(folder / label / f"seed-{seed}")) as records:
        options = {"core_size": columns, "ridge": ridge}
        rule = {"label": label, "name": "fedsteer", "options": options}
        records.manifest({"rule": rule, "seed": seed, "experiment": {"name": "x"}})
        records.finish({"accuracy": accuracy})


def test_accuracy_over_core_set_size(tmp_path: Path) -> None:
    for seed, better in ((0, 0.0), (1, 0.01)):
        for columns, strong, weak in ((10, 0.7, 0.6), (40, 0.72, 0.74)):
            sized(tmp_path, columns, 0.5, seed, strong + better)
            sized(tmp_path, columns, 1e-6, seed, weak + 2 * better)
    sized(tmp_path, 100, 0.5, 0, 0.5)
    runs = find_runs(tmp_path)
    assert core_size_figure(runs, {}).table.splitlines() == [
        "| core set | ridge 0.5 % | ridge 1e-06 % | difference |",
        "| --: | --: | --: | --: |",
        "| 10 | 70.5 ± 6.4 | 61.0 ± 12.7 | +9.5 ± 6.4 |",
        "| 40 | 72.5 ± 6.4 | 75.0 ± 12.7 | -2.5 ± 6.4 |",
        "| 100 | 50.0 | - | - |",
    ]
    drawn = core_size_figure(runs, {}).svg("Sizes & <more>")
    assert {"Sizes & <more>", "ridge 0.5", "ridge 1e-06", "100"} <= set(texts(drawn))
    assert drawn == core_size_figure(find_runs(tmp_path), {}).svg("Sizes & <more>")


def test_a_line_for_every_setting_in_the_order_of_the_paper(tmp_path: Path) -> None:
    accuracies = {("text", "a"): (0.7, 0.72), ("text", "b"): (0.6, 0.6), ("code", "b"): (0.1, 0.3)}
    for (setting, label), values in accuracies.items():
        for seed, accuracy in enumerate(values):
            with closing(RecordWriter(tmp_path / setting / label / f"seed-{seed}")) as records:
                rule = {"label": label, "name": label}
                records.manifest({"rule": rule, "seed": seed, "experiment": {"name": setting}})
                records.finish({"accuracy": accuracy})
    paper_table = {"title": "T", "figure": "changes", "paper": {"text": {}, "code": {}}}
    files = dict(files_of(find_runs(tmp_path), paper_table))
    assert (
        "| text | 71.0 (70, 72) | 60.0 (60, 60) |\n| code | - | 20.0 (10, 30) |"
        in files["table.md"]
    )
    words = texts(files["figure.svg"])
    assert words.index("text") < words.index("code")
    dots = [node for node in ElementTree.fromstring(files["figure.svg"]).iter() if is_dot(node)]
    assert len(dots) == 6 + 2, "one for every run, and one for every rule in the legend"


def is_dot(node: ElementTree.Element) -> bool:
    style = node.get("style", "")
    return node.tag.endswith("use") and any(f"stroke: {colour}" in style for colour in LIGHT)


def test_settings_without_a_finished_run_still_have_a_table(tmp_path: Path) -> None:
    with closing(RecordWriter(tmp_path / "text" / "a" / "seed-0")) as records:
        rule = {"label": "a", "name": "a"}
        records.manifest({"rule": rule, "seed": 0, "experiment": {"name": "text"}})
    paper_table = {"title": "T", "figure": "changes", "paper": {"text": {}}}
    assert list(dict(files_of(find_runs(tmp_path), paper_table))) == ["table.md"]


def test_without_its_data_there_is_no_figure(tmp_path: Path) -> None:
    runs = find_runs(make_comparison(tmp_path, ["fedavg"], seeds=1, rounds=4, clients=4))
    assert core_size_figure(runs, {}) is None and heatmap_figure(runs, {}) is None
    with closing(RecordWriter(tmp_path / "bare")) as records:
        records.manifest({"rule": {"label": "a", "name": "a"}, "seed": 0})
    assert errors_figure(find_runs(tmp_path / "bare"), {}) is None


def coordinates(folder: Path, seed: int, values: np.ndarray) -> None:
    with closing(RecordWriter(folder / f"seed-{seed}")) as records:
        records.manifest({"rule": {"label": "k|2", "name": "fedsteer"}, "seed": seed})
        records.finish({"accuracy": 0.5})
    arrays = {"coordinates": values.astype(np.float32), "watched": np.array([5, 55])}
    save_file(arrays, folder / f"seed-{seed}" / "arrays.safetensors")


def images(svg: str) -> list[np.ndarray]:
    """The heat maps of 30 rounds, without the colour bars beside them."""
    found = []
    for node in ElementTree.fromstring(svg).iter():
        if node.tag.endswith("image"):
            address = node.attrib["{http://www.w3.org/1999/xlink}href"]
            png = base64.b64decode(address.removeprefix("data:image/png;base64,"))
            found.append(np.array(Image.open(io.BytesIO(png)).convert("RGB")))
    return [image for image in found if image.shape[1] == 30]


def test_heat_maps_and_how_stable_they_are(tmp_path: Path) -> None:
    values = np.zeros((30, 2, 2))
    values[5:, 0] = (1.0, 0.0)  # never changes once the client was there
    values[:, 1] = (0.0, 1.0)
    values[::20, 1] = (1.0, 0.0)  # turns by a right angle and back
    coordinates(tmp_path, 0, values)
    runs = find_runs(tmp_path)
    # 15 pairs of client 5 are alike; of the 20 of client 55, those with round 0, 10 or 20 are not.
    assert f"| k\\|2 | {(15 + 18) / 35:.2f} |" in heatmap_figure(runs, {}).table
    drawn = heatmap_figure(runs, {}).svg("Coordinates")
    assert {"k|2", "client 5", "client 55", "training rounds"} <= set(texts(drawn))
    first, second = images(drawn)
    assert first.shape == second.shape == (2, 30, 3), "a pixel per round and coordinate"
    assert first[0, 4].tolist() == [255, 255, 255]
    assert "#" + first[0, 5].tobytes().hex() == COLOURS["fedsteer"]


def test_one_large_coordinate_does_not_pale_the_others(tmp_path: Path) -> None:
    values = np.full((30, 2, 2), -0.5)
    values[3, 0, 0] = 100.0
    coordinates(tmp_path, 0, values)
    first, _ = images(heatmap_figure(find_runs(tmp_path), {}).svg("Coordinates"))
    assert "#" + first[1, 3].tobytes().hex() == LIGHT[2], "-0.5 has the full colour"


def test_errors_over_staleness_and_rounds(tmp_path: Path) -> None:
    for seed, error in ((0, 0.1), (1, 0.3)):
        with closing(RecordWriter(tmp_path / f"seed-{seed}")) as records:
            records.manifest({"rule": {"label": "a|b", "name": "fedsteer"}, "seed": seed})
            row: dict[str, Any] = {"client": 1, "event": "fresh", "staleness": 4}
            row |= {"relative_error": error, "refreshed_error": 0.05}
            records.append("clients", row | {"round": 1})  # warm-up
            records.append("clients", row | {"round": 3})
            records.append("clients", row | {"round": 4, "relative_error": error + 0.2})
            records.append("clients", row | {"round": 5, "staleness": 1, "event": "refresh"})
            records.finish({"accuracy": 0.5, "warm_up_rounds": 2})
    runs = find_runs(tmp_path)
    assert errors_figure(runs, {}).table.splitlines()[:3] == [
        "| rounds away | a\\|b | a\\|b, recomputed |",
        "| --: | --: | --: |",
        "| 4 to 5 | 0.30 ± 1.27 | 0.05 ± 0.00 |",
    ]
    assert texts(errors_figure(runs, {}).svg("Errors"))[-3:] == ["a|b", "a|b, recomputed", "Errors"]


def test_files_of_a_comparison_and_of_a_paper_table(tmp_path: Path) -> None:
    runs = find_runs(make_comparison(tmp_path / "runs", ["fedavg", "mifa"], 2, 8, 6))
    plain = dict(files_of(runs, None))
    assert list(plain) == ["table.md", "accuracy.svg", "cost.svg"]
    assert "| time |" not in plain["table.md"] and "4 runs, fedsteer 0.1.0" in plain["table.md"]
    paper_table = {"title": "Table 9", "figure": "curves", "paper": {"digits": {"fedavg": 0.5}}}
    written = write_files(runs, paper_table, tmp_path / "out")
    assert [path.name for path in written] == ["table.md", "figure.svg", "cost.svg"]
    assert (
        written[0].read_text().startswith("# Table 9\n\n| experiment | rule | ours % | paper % |")
    )
    heatmap = paper_table | {"figure": "heatmap"}
    assert list(dict(files_of(runs, heatmap))) == ["table.md"], "no coordinates"


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    summary = summarise(find_runs(make_comparison(tmp_path, ["fedavg"], 1, 8, 6)))
    head = to_markdown(summary, ["memory", "rule"]).splitlines()[:2]
    assert head == ["| memory | rule |", "| --: | :-- |"]
    with pytest.raises(ConfigurationError, match="unknown column 'memry'"):
        to_markdown(summary, ["memry"])


PAPER_TABLE = {"title": "T", "about": "One <thing>.\n\nAnother.", "figure": "changes", "paper": {}}


def test_the_page_of_a_paper_table_says_what_it_is_about_and_shows_its_figure(
    tmp_path: Path,
) -> None:
    runs = find_runs(make_comparison(tmp_path / "runs", ["fedavg"], seeds=1, rounds=4, clients=4))
    page = write_page(runs, tmp_path / "page.html", paper_table=PAPER_TABLE).read_text()
    assert "<p>One &lt;thing&gt;.</p><p>Another.</p>" in page
    assert page.count('<div class="drawn"><img alt="T" src="data:image/svg+xml;base64,') == 1
    curves = write_page(
        runs, tmp_path / "page.html", paper_table=PAPER_TABLE | {"figure": "curves"}
    )
    assert 'class="drawn"' not in curves.read_text(), "those are drawn below"


def test_pictures_need_matplotlib_and_say_so_while_tables_and_the_page_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_comparison(tmp_path / "runs", ["fedavg"], seeds=1, rounds=4, clients=4)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    runs, out = find_runs(folder), tmp_path / "out"
    assert table_of(runs, PAPER_TABLE).startswith("# T\n\nOne <thing>.")
    page = write_page(runs, tmp_path / "page.html", paper_table=PAPER_TABLE).read_text()
    assert "The figure is left out: matplotlib is not installed." in page
    assert main(["report", str(folder)]) == 0
    assert main(["report", str(folder), "--format", "md"]) == 0
    capsys.readouterr()
    assert main(["report", str(folder), "--format", "svg", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedsteer: matplotlib is not installed: pip install '.[sim]'")
    assert said.count("\n") == 1 and not out.exists()
    with pytest.raises(ModuleNotFoundError):
        write_files(runs, PAPER_TABLE, out)
    assert [path.name for path in out.iterdir()] == ["table.md"]
