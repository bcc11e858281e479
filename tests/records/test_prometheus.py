"""A round in Prometheus' text format."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from fedsteer import ConfigurationError
from fedsteer.records.trackers import prometheus

ROW = {
    "round": 7,
    "phase": "train",
    "time": "2026-01-01T00:00:00+00:00",
    "accuracy": 0.91,
    "delta_norm": 1.5e-7,
    "bytes_up": 123456789012,
    "class_accuracy": [0.5, None],
    "group_accuracy": {"common": 0.9, "rare": None},
    "training": {'a "quoted"\nname\\': 1.25, "text": "x"},
    "evaluation": {"server": {"loss": 2.5}, "clients": {"loss": math.inf}},
    "done": True,
}
TEXT = r"""# TYPE fedsteer_round gauge
fedsteer_round 7.0
# TYPE fedsteer_accuracy gauge
fedsteer_accuracy 0.91
# TYPE fedsteer_delta_norm gauge
fedsteer_delta_norm 1.5e-07
# TYPE fedsteer_bytes_up gauge
fedsteer_bytes_up 123456789012.0
# TYPE fedsteer_group_accuracy gauge
fedsteer_group_accuracy{name="common"} 0.9
# TYPE fedsteer_training gauge
fedsteer_training{name="a \"quoted\"\nname\\"} 1.25
# TYPE fedsteer_evaluation gauge
fedsteer_evaluation{name="loss",by="server"} 2.5
"""
LINE = re.compile(r'[a-z_]+(\{([a-z]+="([^"\\\n]|\\[\\"n])*",?)+\})? [-+.e\d]+')


def test_the_text(tmp_path: Path) -> None:
    prometheus(tmp_path / "a.prom")(ROW)
    assert (tmp_path / "a.prom").read_text() == TEXT
    assert all(LINE.fullmatch(line) for line in TEXT.splitlines() if not line.startswith("#"))


def test_labels_tell_two_federations_apart(tmp_path: Path) -> None:
    prometheus(tmp_path / "a.prom", federation="ward\n7")(ROW)
    lines = (tmp_path / "a.prom").read_text().splitlines()
    assert r'fedsteer_round{federation="ward\n7"} 7.0' in lines
    assert r'fedsteer_group_accuracy{federation="ward\n7",name="common"} 0.9' in lines


def test_the_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector may read at any moment, and reads whatever ends in .prom."""
    track = prometheus(str(tmp_path / "a.prom"))
    track({"round": 1, "loss": 0.5})
    seen: list[str] = []

    def replaced(new: Path, old: Path) -> None:
        seen.append(old.read_text())
        assert new.read_text().endswith("fedsteer_round 2.0\n") and new.suffix != ".prom"
        new.rename(old)

    monkeypatch.setattr("fedsteer.records.files.os.replace", replaced)
    track({"round": 2})
    assert len(seen) == 1 and "fedsteer_loss 0.5" in seen[0]
    assert [path.name for path in tmp_path.iterdir()] == ["a.prom"]
    assert "fedsteer_loss" not in (tmp_path / "a.prom").read_text()  # it was not evaluated


def test_a_file_that_is_not_collected_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"end in \.prom, not a\.txt"):
        prometheus(tmp_path / "a.txt")
