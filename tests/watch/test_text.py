"""Frames as text: what is said, and that it fits."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from fedsteer.watch.folder import LiveFolder
from fedsteer.watch.text import lines_of, plain, sparkline
from tests.report.made_records import make_comparison
from tests.watch.made_runs import EVIL, age, begin, rounds


def text_of(folder: Path, width: int = 80, height: int = 40) -> list[str]:
    return [plain(line) for line in lines_of(LiveFolder(folder).look(), width, height)]


@pytest.fixture
def several(tmp_path: Path) -> Path:
    make_comparison(tmp_path, seeds=4)
    with closing(begin(tmp_path / "flower")) as writer:
        rounds(writer, 1, 9)
    return tmp_path


def test_a_run_in_words(tmp_path: Path) -> None:
    with closing(begin(tmp_path)) as writer:
        rounds(writer, 1, 5)
        rounds(writer, 6, 6, trust=0.4)
    lines = text_of(tmp_path)
    assert lines[2:7] == [
        "fedsteer (practical), seed 3",
        "round 6/50 · 2.9 min left · 4.0 s a round",
        "accuracy 56.0 % · best 56.0 % in round 6",
        "step factor 0.5 · trust 0.4 · fresh 1 of 3 asked · server memory 612 kB",
        "▁▂▄▅▇█",
    ]
    assert "     1 failed    ward-2 since round 3 (01 Jan" in "\n".join(lines)
    assert "     1 fresh     ward-0" in lines and "     1 estimated" in lines
    warnings = lines[lines.index("warnings") + 1 :]
    assert warnings[0].endswith("ward-2 did not answer in time (4 times in all, by any…")
    assert "far fewer clients come than before" in warnings[1]


def test_a_run_that_has_not_begun_is_quiet_or_has_failed(tmp_path: Path) -> None:
    assert "no run has begun here yet" in text_of(tmp_path)[0]
    with closing(begin(tmp_path)) as writer:
        assert text_of(tmp_path)[3] == "has begun, no round has ended yet"
        rounds(writer, 1, 1)
    age(tmp_path, 600)
    assert text_of(tmp_path)[3] == "round 1/50 · no news for 10 min: was it stopped?"
    (tmp_path / "failure.json").write_text('{"reason": "training diverges"}')
    assert text_of(tmp_path)[3] == "round 1/50 · the run has failed: training diverges"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 20), (200, 60), (1, 1)])
def test_the_frame_fits(several: Path, width: int, height: int) -> None:
    lines = text_of(several, width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 26)


def test_runs_that_have_no_room_are_counted(several: Path) -> None:
    lines = text_of(several, height=40)
    assert "1 training, 44 ended" in lines[0]
    assert lines[2].startswith("> fedsteer (practical), seed 3") and "accuracy 59.0 %" in lines[2]
    assert "  and 34 more" in lines


def test_records_cannot_steer_the_terminal(tmp_path: Path) -> None:
    with closing(begin(tmp_path, label=EVIL)) as writer:
        writer.append("clients", {"round": 1, "client": EVIL, "event": "failed", "reason": EVIL})
        rounds(writer, 1, 2)
    text = "".join(text_of(tmp_path, width=300))
    assert text.isprintable() and "<script>" in text


def test_a_sparkline_ends_with_the_last_value() -> None:
    assert sparkline([0.5], 10) == ""
    assert sparkline([1.0, 1.0], 10) == "▁▁"
    assert sparkline([float(x) for x in range(1000)], 8) == "▁▂▃▄▅▆▇█"
