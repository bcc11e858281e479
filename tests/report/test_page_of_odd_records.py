"""Records that are wrong, incomplete or foreign: nothing breaks, nothing is injected."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedsteer.records import RecordWriter
from tests.report.made_records import make_result, make_run
from tests.report.test_page import Outline, data_of, page_of

EVIL = "<script>alert(1)</script>"
CLOSER = '</script><img src="x" onerror="alert(2)">'


def test_records_cannot_inject_markup(tmp_path: Path) -> None:
    make_run(tmp_path / "a", label=EVIL, reason=CLOSER)
    make_run(tmp_path / "b", label="fedsteer (paper)", name=EVIL, reason=CLOSER)
    make_run(tmp_path / "c", label="fedavg", name=CLOSER)
    page = page_of(tmp_path, title=f"</title>{EVIL}")
    outline = Outline(page)
    assert outline.tags.count("script") == 4
    assert "img" not in outline.tags and not outline.handlers
    assert "alert(1)" in page  # shown, as text
    assert EVIL not in page and CLOSER not in page
    assert any(EVIL in rule["name"] for rule in data_of(page)["rules"])


def test_client_names_cannot_inject_markup(tmp_path: Path) -> None:
    make_result(tmp_path, "fedavg", 0, {"accuracy": 0.5})
    with closing(RecordWriter(tmp_path)) as writer:
        for event in ("fresh", "dropped"):
            writer.append("clients", {"round": 1, "client": CLOSER, "event": event, "reason": EVIL})
    page = page_of(tmp_path)
    assert Outline(page).tags.count("script") == 4
    assert data_of(page)["rasters"][0]["clients"] == [CLOSER]


def test_other_reasons_for_silence_are_listed(tmp_path: Path) -> None:
    """A missing answer is not a dropped update; an event we do not know is one."""
    make_result(tmp_path, "fedavg", 0, {"accuracy": 0.5})
    with closing(RecordWriter(tmp_path)) as writer:
        for client, event in ((4, "failed"), (5, "refused")):
            row = {"round": 2, "client": client, "event": event, "reason": "offline"}
            writer.append("clients", row)
        writer.append("clients", row | {"event": "failed", "reason": "failed: once is enough"})
    data = data_of(page_of(tmp_path))
    reasons = {one["reason"]: one["clients"] for one in data["unused"][0]}
    assert reasons == {
        "failed: offline": ["4"], "refused: offline": ["5"], "failed: once is enough": ["5"]
    }  # fmt: skip
    codes = [row[1] for row in data["rasters"][0]["image"]]
    assert [data["kinds"][int(code)] for code in codes] == ["failed", "dropped"]


def test_a_node_that_names_its_client_has_one_row(tmp_path: Path) -> None:
    """Flower's clients are unknown until they answer for the first time."""
    make_result(tmp_path, "fedavg", 0, {"accuracy": 0.5})
    with closing(RecordWriter(tmp_path)) as writer:
        for number, (client, event) in enumerate(
            [("node-7", "failed"), ("client-3", "fresh"), ("node-9", "failed")], start=1
        ):
            row = {"round": number, "client": client, "event": event}
            writer.append("clients", row | ({"node": "node-7"} if event == "fresh" else {}))
    (picture,) = data_of(page_of(tmp_path))["rasters"]
    assert picture["clients"] == ["client-3", "node-9"]


def test_equal_data_is_drawn_once(tmp_path: Path) -> None:
    for label in ("full participation", "fedavg", "mifa"):
        make_run(tmp_path / label / "seed-0", label=label, rounds=4)
    data = data_of(page_of(tmp_path))
    assert len(data["pictures"]) == 1 and data["holds"] == [0]


def test_least_records_give_a_table_and_no_empty_boxes(tmp_path: Path) -> None:
    make_result(tmp_path, "fedavg", None, {"accuracy": 0.5})
    outline = Outline(page_of(tmp_path))
    assert "summary" in outline.ids
    assert "figure" not in outline.tags


def test_run_of_another_program(tmp_path: Path) -> None:
    """Text ids, nothing about the clients, no traffic: what is known is shown."""
    make_result(tmp_path, "fedsteer (practical)", 0, None)
    with closing(RecordWriter(tmp_path)) as writer:
        for moment in (1, 2, 3):
            writer.append("rounds", {"round": moment, "accuracy": 0.2 * moment, "surprise": []})
            writer.append(
                "clients",
                {"round": moment, "client": "phone-7", "event": "fresh", "relative_error": 0.5}
                | ({"staleness": 1} if moment > 1 else {}),
            )
    page = page_of(tmp_path)
    assert {"accuracy", "residual", "staleness", "raster"} <= Outline(page).ids
    assert not {"groups", "cost", "holds", "variance", "events"} & Outline(page).ids
    (curve,) = data_of(page)["accuracy"]
    assert curve["mean"] == [0.2, 0.4, 0.6] and "sent" not in curve


@pytest.mark.parametrize(
    "clients",
    [None, {}, [], {"sizes": None}, {"data_group": ["a"]}, {"holds": [[]], "probabilities": None}],
)
def test_odd_manifests_are_survived(tmp_path: Path, clients: object) -> None:
    make_run(tmp_path, rounds=4)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"clients": clients, "data": None, "experiment": []}))
    assert "raster" in Outline(page_of(tmp_path)).ids


def test_odd_arrays_are_survived(tmp_path: Path) -> None:
    make_run(tmp_path, rounds=4, label="fedsteer (paper)")
    blank = np.full((9, 2, 3), np.nan, np.float32)
    save_file({"coordinates": blank}, tmp_path / "arrays.safetensors")
    assert "coordinates" not in Outline(page_of(tmp_path)).ids
    blank[:, 0] = 0.0
    blank[3:, 1] = -2.5
    save_file({"coordinates": blank}, tmp_path / "arrays.safetensors")
    (watched,) = data_of(page_of(tmp_path))["coordinates"][0]["watched"]
    assert watched["client"] == "1"  # client 0 was never visited
    assert watched["rows"][0][:4] == [None, None, None, -999]
    assert watched["scale"] * 999 == pytest.approx(2.5, rel=1e-5)


def test_unfinished_run_is_drawn_while_none_is_finished(tmp_path: Path) -> None:
    make_run(tmp_path / "a", finish=False)
    page = page_of(tmp_path)
    assert data_of(page)["accuracy"][0] is not None
    assert "1 unfinished run is not counted." in page
