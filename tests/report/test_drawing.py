"""The picture: well-formed, complete, the same bytes every time, and safe."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedsteer.errors import DataError
from fedsteer.records import RecordWriter, Run, find_runs
from fedsteer.report import to_svg


def made(folder: Path, label: str, seed: int, accuracies: list[float]) -> None:
    with RecordWriter(folder / label.replace("<", "") / f"seed-{seed}") as records:
        records.manifest({"rule": {"label": label, "name": label}, "seed": seed})
        for number, accuracy in enumerate(accuracies, start=1):
            row = {"round": number, "phase": "train", "training_round": number}
            records.append("rounds", row | {"accuracy": accuracy})
        records.finish({"finished": True, "accuracy": accuracies[-1]})


def test_every_rule_is_drawn_and_named_with_its_last_accuracy(tmp_path: Path) -> None:
    for seed in (0, 1):
        made(tmp_path, "fedavg", seed, [0.1, 0.4])
        made(tmp_path, "fed<b>", seed, [0.2, 0.6])
    drawn = to_svg(find_runs(tmp_path), "Accuracy & <title>")
    tree = ElementTree.fromstring(drawn)
    texts = [node.text for node in tree.iter() if node.tag.endswith("text")]
    assert "Accuracy & <title>" in texts
    assert texts[-4:] == ["fed<b>", "60.0", "fedavg", "40.0"]
    assert drawn == to_svg(find_runs(tmp_path), "Accuracy & <title>")


def test_a_rule_far_behind_is_named_instead_of_pressing_the_others_together(tmp_path: Path) -> None:
    made(tmp_path, "good", 0, [0.1, 0.6, 0.7, 0.75])
    made(tmp_path, "better", 0, [0.2, 0.65, 0.72, 0.78])
    made(tmp_path, "lost", 0, [0.1, 0.1, 0.12, 0.11])
    drawn = to_svg(find_runs(tmp_path), "Accuracy")
    texts = [node.text for node in ElementTree.fromstring(drawn).iter() if node.text]
    assert "below 50: lost" in texts and "80" in texts and "90" not in texts
    panel = next(node for node in ElementTree.fromstring(drawn).iter() if node.get("viewBox"))
    assert panel is not None and drawn.count("<svg x=") == 3, "lines are cut off at the panel"


def test_whoever_falls_at_the_end_is_shown_or_named(tmp_path: Path) -> None:
    made(tmp_path, "steady", 0, [0.8, 0.8, 0.85, 0.9])
    made(tmp_path, "slips", 0, [0.8, 0.8, 0.85, 0.65])
    made(tmp_path, "collapses", 0, [0.8, 0.8, 0.85, 0.1])
    texts = [t.text for t in ElementTree.fromstring(to_svg(find_runs(tmp_path), "A")).iter()]
    assert "below 60: collapses" in texts


def test_an_axis_that_one_experiment_lacks(tmp_path: Path) -> None:
    for name, sent in (("told", {"bytes_up": 10, "bytes_down": 10}), ("untold", {})):
        with RecordWriter(tmp_path / name / "fedavg" / "seed-0") as records:
            rule = {"label": "fedavg", "name": "fedavg"}
            records.manifest({"rule": rule, "seed": 0, "experiment": {"name": name}})
            for number in (1, 2, 3):
                row = {"round": number, "phase": "train", "training_round": number}
                records.append("rounds", row | {"accuracy": 0.5} | sent)
    drawn = to_svg(find_runs(tmp_path), "A", ("all", "sent"))
    assert drawn.count('stroke-width="2"') == 3, "two panels of the one, one of the other"


def test_nothing_evaluated_is_said(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "run") as records:
        records.manifest({"rule": {"label": "fedavg", "name": "fedavg"}, "seed": 0})
    with pytest.raises(DataError, match="nothing to draw"):
        to_svg([Run(tmp_path / "run")], "empty")
