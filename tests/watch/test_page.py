"""The page of `fedsteer watch`, over HTTP and in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from fedsteer.errors import ConfigurationError
from fedsteer.records import RecordWriter
from fedsteer.watch.folder import LiveFolder
from fedsteer.watch.page import PageServer, data_of, served
from tests.browser import browser, load, show_as, waiting
from tests.report.made_records import make_comparison
from tests.watch.made_runs import EVIL, age, begin, rounds


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RecordWriter]:
    with closing(begin(tmp_path / "flower")) as found:
        rounds(found, 1, 9)
        yield found


@pytest.fixture
def server(tmp_path: Path, writer: RecordWriter) -> Iterator[PageServer]:
    make_comparison(tmp_path / "made", ["fedavg", "mifa"], seeds=1)
    with served(LiveFolder(tmp_path), port=0, every=0.2) as found:
        yield found


def get(server: PageServer, path: str, host: str | None = None) -> tuple[int, str, Any]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    with closing(connection):
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def test_frames_follow_the_run(server: PageServer, writer: RecordWriter) -> None:
    frame = json.loads(get(server, "/frame")[1])
    assert frame["focus"]["progress"] == "round 9/50" and frame["summary"] == "1 training, 2 ended"
    rounds(writer, 10, 10)
    frame = json.loads(get(server, "/frame")[1])
    assert frame["focus"]["progress"] == "round 10/50" and frame["focus"]["share"] == 0.2
    assert frame["details"]["counts"] == {"failed": 1, "fresh": 1, "estimated": 1}
    assert frame["details"]["clients"][0][:2] == ["ward-2", "failed"]
    other = json.loads(get(server, "/frame?run=made%2Frule-1%2Fseed-0")[1])
    assert other["focus"]["title"] == "mifa, seed 0" and other["focus"]["left"] == "ended"


def test_only_our_own_address_is_answered(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/")[0] == 200 == get(server, "/", f"localhost:{server.server_port}")[0]
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1"):
        assert get(server, "/frame", host)[0] == 403
    assert get(server, "/../page.py")[0] == 404
    status, page, headers = get(server, "/")
    assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
    assert "https:" not in page and page.count("http:") == 1  # the name space of SVG


def test_a_port_that_is_taken_or_none(server: PageServer, tmp_path: Path) -> None:
    for port in (server.server_port, 70_000, -1):
        with (
            pytest.raises(ConfigurationError, match=f"cannot serve on port {port}"),
            served(LiveFolder(tmp_path), port=port, every=1.0),
        ):
            pass


def test_a_frame_without_runs_is_json_too(tmp_path: Path) -> None:
    frame = data_of(LiveFolder(tmp_path).look())
    assert json.loads(json.dumps(frame, allow_nan=False))["runs"] == []


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def text(driver: Any, place: str) -> str:
    found: str = driver.execute_script(
        "return document.querySelector(arguments[0]).innerText", place
    )
    return found


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_refreshes_itself(
    driver: Any, server: PageServer, writer: RecordWriter, width: int, dark: bool, tmp_path: Path
) -> None:
    show_as(driver, width, dark)
    load(driver, server.address)
    waiting(driver).until(lambda _: "round 9/50" in text(driver, "#focus"))
    rounds(writer, 10, 11, trust=0.25)
    waiting(driver).until(lambda _: "round 11/50" in text(driver, "#focus"))
    assert "accuracy 61.0 %" in text(driver, "#curve") and "0.25" in text(driver, "#focus")
    for words in ("1 failed", "2 fresh", "ward-2", "since round 3", "did not answer in time"):
        assert words in text(driver, "#clients")
    assert "far fewer clients" in text(driver, "#warnings")
    assert driver.title == "round 11/50 · accuracy 61.0 % · fedsteer watch"
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    back = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(20, 22, 26)" if dark else "rgb(246, 246, 244)")

    driver.execute_script("document.querySelector('[data-run=\"made/rule-1/seed-0\"]').click()")
    waiting(driver).until(lambda _: "mifa, seed 0" in text(driver, "#focus h2"))
    assert "Clients" in text(driver, "#clients")

    writer.finish({"finished": True, "accuracy": 0.61, "rounds": 11})
    age(tmp_path, 60)
    waiting(driver).until(lambda _: "all runs have ended" in text(driver, "#news"))
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.browser
def test_records_cannot_run_anything_on_the_page(driver: Any, tmp_path: Path) -> None:
    with closing(begin(tmp_path, label=EVIL)) as writer:
        writer.append("clients", {"round": 1, "client": EVIL, "event": "failed", "reason": EVIL})
        rounds(writer, 1, 2)
        with served(LiveFolder(tmp_path), port=0, every=0.2) as server:
            load(driver, server.address)
            waiting(driver).until(lambda _: "<script>" in text(driver, "#clients"))
            assert "<script>" in text(driver, "#warnings") and driver.title != "taken"
            assert len(driver.find_elements("tag name", "script")) == 1


@pytest.mark.browser
def test_the_page_says_when_nobody_answers(driver: Any, tmp_path: Path) -> None:
    with closing(begin(tmp_path)) as writer:
        rounds(writer, 1, 2)
        with served(LiveFolder(tmp_path), port=0, every=0.2) as server:
            load(driver, server.address)
            waiting(driver).until(lambda _: "round 2/50" in text(driver, "#focus"))
        waiting(driver).until(lambda _: "does not answer" in text(driver, "#news"))
        assert "round 2/50" in text(driver, "#focus")  # the last words stay
