"""The paper's figures from records: well-formed, complete, the same bytes, the right numbers."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.records import RecordWriter, find_runs
from fedsteer.report import (
    files_of,
    summarise,
    to_markdown,
    to_svg,
    write_files,
    write_page,
)
from fedsteer.report.heatmaps import heatmaps_markdown, heatmaps_svg
from fedsteer.report.png import STEPS, to_png
from fedsteer.report.reconstruction import errors_markdown, errors_svg
from fedsteer.report.sizes import sizes_markdown, sizes_svg
from fedsteer.report.svg import Axis
from tests.report.made_records import make_comparison


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if "text" in node.tag]


def sized(folder: Path, columns: int, ridge: float, seed: int, accuracy: float) -> None:
    label = f"k{columns}-ridge{ridge:g}"
    with RecordWriter(folder / label / f"seed-{seed}") as records:
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
    assert sizes_markdown(runs).splitlines() == [
        "| core set | ridge 0.5 % | ridge 1e-06 % | difference |",
        "| --: | --: | --: | --: |",
        "| 10 | 70.5 ± 6.4 | 61.0 ± 12.7 | +9.5 ± 6.4 |",
        "| 40 | 72.5 ± 6.4 | 75.0 ± 12.7 | -2.5 ± 6.4 |",
        "| 100 | 50.0 | - | - |",
    ]
    drawn = sizes_svg(runs, "Sizes & <more>")
    assert {"Sizes & <more>", "ridge 0.5", "ridge 1e-06", "100"} <= set(texts(drawn))
    assert drawn.count("<circle") == 5 and drawn == sizes_svg(find_runs(tmp_path), "Sizes & <more>")


def test_a_line_for_every_setting_in_the_order_of_the_sheet(tmp_path: Path) -> None:
    accuracies = {("text", "a"): (0.7, 0.72), ("text", "b"): (0.6, 0.6), ("code", "b"): (0.1, 0.3)}
    for (setting, label), values in accuracies.items():
        for seed, accuracy in enumerate(values):
            with RecordWriter(tmp_path / setting / label / f"seed-{seed}") as records:
                rule = {"label": label, "name": label}
                records.manifest({"rule": rule, "seed": seed, "experiment": {"name": setting}})
                records.finish({"accuracy": accuracy})
    runs = find_runs(tmp_path)
    sheet = {"title": "T", "figure": "changes", "paper": {"text": {}, "code": {}}}
    made = files_of(runs, sheet)
    assert (
        "| text | 71.0 (70, 72) | 60.0 (60, 60) |\n| code | - | 20.0 (10, 30) |" in made["table.md"]
    )
    words = texts(made["figure.svg"])
    assert (
        words.index("text") < words.index("code") and made["figure.svg"].count("<circle") == 6 + 2
    )


def test_settings_without_a_finished_run_still_have_a_table(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "text" / "a" / "seed-0") as records:
        rule = {"label": "a", "name": "a"}
        records.manifest({"rule": rule, "seed": 0, "experiment": {"name": "text"}})
    sheet = {"title": "T", "figure": "changes", "paper": {"text": {}}}
    assert list(files_of(find_runs(tmp_path), sheet)) == ["table.md"]


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    runs = find_runs(make_comparison(tmp_path, ["fedavg"], seeds=1, rounds=4, clients=4))
    for draw in (sizes_svg, heatmaps_svg):
        with pytest.raises(DataError, match="nothing to draw"):
            draw(runs, "x")
    with RecordWriter(tmp_path / "bare") as records:
        records.manifest({"rule": {"label": "a", "name": "a"}, "seed": 0})
    with pytest.raises(DataError, match="no client rows with errors"):
        errors_svg(find_runs(tmp_path / "bare"), "x")


def coordinates(folder: Path, seed: int, values: np.ndarray) -> None:
    with RecordWriter(folder / f"seed-{seed}") as records:
        records.manifest({"rule": {"label": "k|2", "name": "fedsteer"}, "seed": seed})
        records.finish({"accuracy": 0.5})
    arrays = {"coordinates": values.astype(np.float32), "watched": np.array([5, 55])}
    save_file(arrays, folder / f"seed-{seed}" / "arrays.safetensors")


def test_heat_maps_and_how_stable_they_are(tmp_path: Path) -> None:
    values = np.zeros((30, 2, 2))
    values[5:, 0] = (1.0, 0.0)  # never changes once the client was there
    values[:, 1] = (0.0, 1.0)
    values[::20, 1] = (1.0, 0.0)  # turns by a right angle and back
    coordinates(tmp_path, 0, values)
    runs = find_runs(tmp_path)
    # 15 pairs of client 5 are alike; of the 20 of client 55, those with round 0, 10 or 20 are not.
    assert f"| k\\|2 | {(15 + 18) / 35:.2f} |" in heatmaps_markdown(runs)
    drawn = heatmaps_svg(runs, "Coordinates")
    assert "client 55, training rounds 1 to 30" in texts(drawn)
    words = "k|2: 2 coordinates, red positive, blue negative, full colour at 1 and beyond"
    assert words in texts(drawn)
    images = [node for node in ElementTree.fromstring(drawn).iter() if node.tag.endswith("image")]
    assert len(images) == 2
    png = base64.b64decode(images[0].attrib["href"].removeprefix("data:image/png;base64,"))
    assert struct.unpack(">II", png[16:24]) == (30, 2), "a pixel per round and coordinate"


def test_one_large_coordinate_does_not_pale_the_others(tmp_path: Path) -> None:
    values = np.full((30, 2, 2), -0.5)
    values[3, 0, 0] = 100.0
    coordinates(tmp_path, 0, values)
    drawn = heatmaps_svg(find_runs(tmp_path), "Coordinates")
    assert any("full colour at 0.5 and beyond" in words for words in texts(drawn))


def test_an_image_holds_its_values() -> None:
    png = to_png(np.array([[-2.0, 0.0], [0.5, 1.0]]))
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(
            kind + content
        )
        chunks[kind] = content
        at += 12 + length
    assert zlib.decompress(chunks[b"IDAT"]) == bytes([0, 0, STEPS, 0, 150, 2 * STEPS])
    assert chunks[b"PLTE"][3 * STEPS : 3 * STEPS + 3] == bytes([247, 247, 247])
    large = to_png(np.zeros((300, 300)))  # more than one stored block
    (length,) = struct.unpack(">I", large[8 + 25 + 12 + 603 : 8 + 25 + 12 + 607])
    assert len(zlib.decompress(large[8 + 25 + 12 + 611 :][:length])) == 300 * 301


def test_errors_over_staleness_and_rounds(tmp_path: Path) -> None:
    for seed, error in ((0, 0.1), (1, 0.3)):
        with RecordWriter(tmp_path / f"seed-{seed}") as records:
            records.manifest({"rule": {"label": "a|b", "name": "fedsteer"}, "seed": seed})
            row: dict[str, Any] = {"client": 1, "event": "fresh", "staleness": 4}
            row |= {"relative_error": error, "refreshed_error": 0.05}
            records.append("clients", row | {"round": 1})  # warm-up
            records.append("clients", row | {"round": 3})
            records.append("clients", row | {"round": 4, "relative_error": error + 0.2})
            records.append("clients", row | {"round": 5, "staleness": 1, "event": "refresh"})
            records.finish({"accuracy": 0.5, "warm_up_rounds": 2})
    runs = find_runs(tmp_path)
    assert errors_markdown(runs).splitlines()[:3] == [
        "| rounds away | a\\|b | a\\|b, recomputed |",
        "| --: | --: | --: |",
        "| 4 to 5 | 0.30 ± 1.27 | 0.05 ± 0.00 |",
    ]
    drawn = errors_svg(runs, "Errors")
    assert texts(drawn)[-2:] == ["a|b", "a|b, recomputed"]


def test_several_experiments_get_a_panel_each_and_rules_keep_their_look(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_comparison(tmp_path / name, ["fedavg", "mifa"], 2, 8, 6, name=name)
    drawn = to_svg(find_runs(tmp_path), "Both", ("all", "sent"))
    words = texts(drawn)
    assert words.count("one") == words.count("two") == 2, "over rounds and over bytes"
    assert words.count("fedavg") == words.count("mifa") == 1, "one legend"
    turned = texts(to_svg(find_runs(tmp_path), "Both", order=["two", "absent"]))
    assert turned.index("two") < turned.index("one")
    assert any("bytes sent" in word or "B sent" in word for word in words)


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis(0, 150), [0, 50, 100, 150]),
        (Axis(0, 100), [0, 20, 40, 60, 80, 100]),
        (Axis(71.2, 74.9), [72, 73, 74]),
        (Axis(1, 30, log=True), [1, 2, 5, 10, 20]),
        (Axis(0.01, 1000, log=True), [0.01, 0.1, 1, 10, 100, 1000]),
    ],
)
def test_ticks_are_round_numbers(axis: Axis, ticks: list[float]) -> None:
    np.testing.assert_allclose(axis.ticks(), ticks)


def test_files_of_a_comparison_and_of_a_sheet(tmp_path: Path) -> None:
    runs = find_runs(make_comparison(tmp_path / "runs", ["fedavg", "mifa"], 2, 8, 6))
    plain = files_of(runs, None)
    assert list(plain) == ["table.md", "accuracy.svg", "cost.svg"]
    assert "| time |" not in plain["table.md"] and "4 runs, fedsteer 0.1.0" in plain["table.md"]
    sheet = {"title": "Table 9", "figure": "curves", "paper": {"digits": {"fedavg": 0.5}}}
    written = write_files(runs, sheet, tmp_path / "out")
    assert [path.name for path in written] == ["table.md", "figure.svg", "cost.svg"]
    assert (
        written[0].read_text().startswith("# Table 9\n\n| experiment | rule | ours % | paper % |")
    )
    assert list(files_of(runs, sheet | {"figure": "heatmap"})) == ["table.md"], "no coordinates"


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    summary = summarise(find_runs(make_comparison(tmp_path, ["fedavg"], 1, 8, 6)))
    head = to_markdown(summary, ["memory", "rule"]).splitlines()[:2]
    assert head == ["| memory | rule |", "| --: | :-- |"]
    with pytest.raises(ConfigurationError, match="unknown column 'memry'"):
        to_markdown(summary, ["memry"])


def test_the_page_of_a_table_says_what_it_is_about_and_shows_its_figure(tmp_path: Path) -> None:
    runs = find_runs(make_comparison(tmp_path / "runs", ["fedavg"], seeds=1, rounds=4, clients=4))
    sheet = {"title": "T", "about": "One <thing>.\n\nAnother.", "figure": "changes", "paper": {}}
    page = write_page(runs, tmp_path / "page.html", sheet=sheet).read_text()
    assert "<p>One &lt;thing&gt;.</p><p>Another.</p>" in page
    assert page.count('<div class="drawn"><svg') == 1
    curves = write_page(runs, tmp_path / "page.html", sheet=sheet | {"figure": "curves"})
    assert 'class="drawn"' not in curves.read_text(), "those are drawn below"
