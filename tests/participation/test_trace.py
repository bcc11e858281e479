from __future__ import annotations

import contextlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.participation import PROCESSES, read_trace
from fedsteer.participation.trace import Trace

HOUR = 3600.0


def spans(*pairs: tuple[float, float]) -> np.ndarray:
    return np.array(pairs, dtype=float).reshape(-1, 2)


def test_present_at_the_start_of_a_round() -> None:
    trace = Trace((spans((0, 10), (20, 30)), spans((10, 20)), spans()), 10.0, 40.0)
    expected = [[0], [1], [0], []]
    assert [trace.present(number).tolist() for number in range(8)] == expected * 2
    assert trace.probabilities.tolist() == [0.5, 0.25, 0.0]


def test_staying_for_some_time() -> None:
    trace = Trace((spans((0, 10)), spans((0, 4)), spans((0, 4), (4, 5))), 10.0, 10.0, 5.0)
    assert trace.present(0).tolist() == [0, 2]  # intervals that touch are one
    assert trace.probabilities.tolist() == [1.0, 0.0, 1.0]


def test_records_of_different_length() -> None:
    trace = Trace((spans((0, 1)), spans((0, 1))), 1.0, np.array([2.0, 3.0]))
    together = [number for number in range(12) if trace.present(number).tolist() == [0, 1]]
    assert together == [0, 6]


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 60), min_size=2, max_size=8, unique=True),
    round_seconds=st.integers(1, 70),
    stay=st.integers(0, 9),
)
@pytest.mark.parametrize("unit", [1.0, 0.1, 0.007])
def test_probabilities_are_exact(
    unit: float, cuts: list[int], round_seconds: int, stay: int
) -> None:
    """In whole seconds, and in fractions that no float holds."""
    cuts = sorted(cuts)[: len(cuts) // 2 * 2]
    pairs = list(zip(cuts[::2], cuts[1::2], strict=True))

    def seconds(whole: int) -> float:
        return round(whole * unit, 3)

    trace = Trace(
        (spans(*((seconds(start), seconds(end)) for start, end in pairs)),),
        seconds(round_seconds),
        seconds(60),
        seconds(stay),
    )
    there = 0
    for number in range(60):
        now = number * round_seconds % 60
        expected = any(start <= now < end and now + stay <= end for start, end in pairs)
        assert trace.present(number).tolist() == [0] * expected
        there += expected
    assert trace.probabilities[0] == pytest.approx(there / 60)


def test_sample_keeps_the_records() -> None:
    trace = Trace(tuple(spans((i, i + 1)) for i in range(20)), 1.0, np.arange(20) + 30.0)
    some = trace.sample(5, seed=1)
    assert some.clients == 5
    chosen = [int(own[0, 0]) for own in some.intervals]
    assert len(set(chosen)) == 5
    np.testing.assert_allclose(some.probabilities, trace.probabilities[chosen])
    for number in range(40):
        expected = [k for k, device in enumerate(chosen) if device in trace.present(number)]
        assert some.present(number).tolist() == expected
    with pytest.raises(ConfigurationError, match="21 clients"):
        trace.sample(21, seed=1)


@pytest.mark.parametrize(
    ("intervals", "options", "error"),
    [
        ([[(0, 1)]], {"round_seconds": 0}, ConfigurationError),
        ([[(0, 1)]], {"round_seconds": 1e-7}, ConfigurationError),
        ([[(0, 1)]], {"round_seconds": 1e13}, ConfigurationError),
        ([[(0, 1)]], {"stay_seconds": -1}, ConfigurationError),
        ([[(0, 1)]], {"lengths": 0.0}, ConfigurationError),
        ([[(0, 2)]], {"lengths": 1.0}, DataError),
        ([[(1, 1)]], {}, DataError),
        ([[(2, 1)]], {}, DataError),
        ([[(-1, 1)]], {}, DataError),
        ([[(0, np.inf)]], {}, DataError),
        ([[(0, 1e13)]], {}, DataError),
        ([[(0, 3), (2, 4)]], {}, DataError),
        ([[]], {}, DataError),
        ([], {}, DataError),
    ],
)
def test_trace_refuses(intervals: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Trace(tuple(intervals), **{"round_seconds": 1.0} | options)


def test_avt(tmp_path: Path) -> None:
    """Tabs and blanks, nodes without sessions, and sessions that touch."""
    path = tmp_path / "trace.avt"
    path.write_text("ab12\t2\t 0 15 30 40\n\nnever\t0\t\nc 2 10 20 20 30\n")
    found = read_trace(path, round_seconds=10)
    assert [own.tolist() for own in found.intervals] == [[[0, 15], [30, 40]], [], [[10, 30]]]
    assert [found.present(number).tolist() for number in range(1, 5)] == [[0, 2], [2], [0], [0]]
    assert found.probabilities.tolist() == [0.75, 0.0, 0.5]


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("client,start,end\n2,0,10\n0,30,40\n\n0,5,15.5\n")
    trace = read_trace(path, round_seconds=10)
    assert trace.clients == 3
    assert trace.intervals[0].tolist() == [[5, 15.5], [30, 40]]
    assert [trace.present(number).tolist() for number in range(4)] == [[2], [0], [], [0]]
    assert read_trace(path, round_seconds=10, length=100).present(10).tolist() == [2]


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"1": [[0, 10]], "0": []}))
    trace = read_trace(path, round_seconds=5)
    assert trace.clients == 2 and trace.present(1).tolist() == [1]


FEDSCALE = {
    7: {
        "duration": 25,
        "inactive": [15, 40],
        "finish_time": 60,
        "active": [0, 30],
        "model": "phone",
    },
    3: {"duration": 20, "inactive": [70], "finish_time": 80.0, "active": [50], "model": "other"},
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_fedscale(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "trace.pkl"
    path.write_bytes(pickle.dumps(FEDSCALE, protocol=protocol))
    trace = read_trace(path, round_seconds=10)
    assert trace.intervals[0].tolist() == [[50, 70]]  # device 3 comes first
    assert trace.intervals[1].tolist() == [[0, 15], [30, 40]]
    # At second 130, device 3 is at 50 of 80 and device 7 at 10 of 60.
    assert trace.present(13).tolist() == [0, 1]


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


@pytest.mark.parametrize(
    "content",
    [
        Hostile(),
        {1: Hostile()},
        {1: {**FEDSCALE[7], "model": np.float64(1.0)}},
        {1: {**FEDSCALE[7], "active": np.array([0, 30])}},
        {1: {**FEDSCALE[7], "model": print}},
        {1: {**FEDSCALE[7], "model": 1j}},
        {1: {**FEDSCALE[7], "model": bytearray(b"x")}},
    ],
)
def test_a_pickle_may_hold_plain_values_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "trace.pickle"
    path.write_bytes(pickle.dumps(content, protocol=4))
    with pytest.raises(DataError, match="refused: the pickle asks for"):
        read_trace(path, round_seconds=1)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {1: 2},
        {1: {"active": [1]}},
        {1: {**FEDSCALE[7], "active": [1]}},
        {1: {**FEDSCALE[7], "active": 5}},
        {1: {**FEDSCALE[7], "active": ["0", "30"]}},
        {1: {**FEDSCALE[7], "active": [0, float("nan")]}},
        {1: {**FEDSCALE[7], "active": [0, 10**400]}},
        {1: {**FEDSCALE[7], "active": [0, 45]}},
        {1: {**FEDSCALE[7], "finish_time": 0}},
        {1: {**FEDSCALE[7], "finish_time": 39}},
        {1: {**FEDSCALE[7], "finish_time": None}},
        {1: FEDSCALE[7], "a": FEDSCALE[7]},
    ],
)
def test_malformed_fedscale(tmp_path: Path, content: object) -> None:
    path = tmp_path / "trace.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=r"trace\.pkl: "):
        read_trace(path, round_seconds=1)


FLASH_DAY = "\n".join(
    [
        "2020-01-28 20:00:00\tscreen_lock",
        "2020-01-28 22:00:00\tbattery_charged_on",
        "2020-01-28 21:00:00\tWiFi",  # lines come in any order
        "2020-01-28 23:00:00\t87.0%",
        "2020-01-29 02:00:00\t4G",
        "2020-01-29 03:00:00\twifi",
        "2020-01-29 06:30:00\tscreen_on",
        "2020-01-29 07:00:00\tscreen_unlock",
        "",
    ]
)
FLASH_OPEN = "\n".join(
    [
        "2020-01-29 01:00:00\tbattery_charged_on",
        "2020-01-29 01:00:00\twifi",
        "2020-01-29 01:00:00\tscreen_lock",
        "2020-01-29 02:00:00\tscreen_unlock",
        "2020-01-29 02:00:00\tscreen_lock",
        "2020-01-29 03:00:00\tbattery_okay",
    ]
)


def test_flash(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps({"b": {"messages": FLASH_DAY, "model": "x"}, "a": {"messages": FLASH_OPEN}})
    )
    trace = read_trace(path, round_seconds=HOUR)
    np.testing.assert_array_equal(trace.intervals[0] / HOUR, [[22, 26], [27, 31]])
    np.testing.assert_array_equal(trace.intervals[1] / HOUR, [[25, 27]])
    # Both records repeat after two whole days.
    assert trace.present(48 + 25).tolist() == [0, 1]
    assert trace.probabilities.tolist() == [8 / 48, 2 / 48]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trace.csv", ""),
        ("trace.csv", "client,start\n"),
        ("trace.csv", "client,start,end\n"),
        ("trace.csv", "client,start,end\n0,1\n"),
        ("trace.csv", "client,start,end\n0,1,soon\n"),
        ("trace.csv", "client,start,end\n0,1,nan\n"),
        ("trace.csv", "client,start,end\n-1,0,1\n"),
        ("trace.csv", "client,start,end\n999999999999,0,1\n"),
        ("trace.csv", 'client,start,end\n"0,1,2\n'),
        ("trace.avt", ""),
        ("trace.avt", "node\n"),
        ("trace.avt", "node two 0 1 2 3\n"),
        ("trace.avt", "node 2 0 1 2\n"),
        ("trace.avt", "node -1 0 1\n"),
        ("trace.avt", "node 1 0 soon\n"),
        ("trace.avt", "node 1 0 nan\n"),
        ("trace.avt", "node 2 0 5 4 6\n"),
        ("trace.json", ""),
        ("trace.json", "[]"),
        ("trace.json", "{}"),
        ("trace.json", "[" * 100_000),
        ("trace.json", '{"0": 5}'),
        ("trace.json", '{"zero": [[0, 1]]}'),
        ("trace.json", '{"0": [[0, 1, 2]]}'),
        ("trace.json", '{"0": [["0", "1"]]}'),
        ("trace.json", '{"0": ["01"]}'),
        ("trace.json", '{"0": [[0, 1e999]]}'),
        ("trace.json", '{"0": []}'),
        ("trace.json", '{"0": {"model": "x"}}'),
        ("trace.json", '{"0": {"messages": 5}}'),
        ("trace.json", '{"0": {"messages": ""}}'),
        ("trace.json", '{"0": {"messages": "yesterday\\twifi"}}'),
        ("trace.json", '{"0": {"messages": "2020-01-28 20:00:00\\tscreen_off"}}'),
        ("trace.json", '{"0": {"messages": "2020-01-28 20:00:00\\twifi"}}'),
        ("trace.txt", ""),
        ("trace.pkl", "not a pickle"),
    ],
)
def test_malformed_files(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_trace(path, round_seconds=1)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_trace(tmp_path / "none.csv", round_seconds=1)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="utf-8"):
        read_trace(tmp_path / "bytes.csv", round_seconds=1)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_damaged_pickles(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, protocol: int
) -> None:
    damaged = bytearray(pickle.dumps(FEDSCALE, protocol=protocol))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "trace.pkl"
    path.write_bytes(damaged)
    with contextlib.suppress(DataError):
        assert read_trace(path, round_seconds=1).clients >= 1


def test_a_client_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"a": [[0, 10]], "a": [[20, 30]]}')
    with pytest.raises(DataError, match="'a' comes twice"):
        read_trace(path, round_seconds=5)


def test_a_relative_path_is_also_looked_for_among_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "client,start,end\n0,0,1\n"
    monkeypatch.setenv("FEDSTEER_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    options = PROCESSES["trace"](trace="own.csv")  # type: ignore[call-arg]
    assert options.files() == {"trace": "own.csv"}
    with pytest.raises(DataError, match=r"own\.csv cannot be read"):
        options.process(1, 0)
    for place in ("data/traces", "data", "."):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "own.csv").write_text(content)
        found = Path(options.files()["trace"]).absolute()
        assert found == (tmp_path / place / "own.csv").absolute()
    assert options.process(1, 0).clients == 1
    own = str(tmp_path / "data" / "own.csv")
    assert PROCESSES["trace"](trace=own).files() == {"trace": own}  # type: ignore[call-arg]
    assert PROCESSES["groups"]().files() == {}
