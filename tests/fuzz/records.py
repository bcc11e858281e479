"""Readers of what runs leave: records, archives, checkpoints, and the report that shows them."""

from __future__ import annotations

import csv
import io
import json
import lzma
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import numpy as np

from fedsteer import ServerOptimiser, make_rule
from fedsteer.records import (
    find_runs,
    load_server,
    pack_records,
    read_checkpoint,
    read_sheet,
    runs_of_sheet,
    save_server,
    write_checkpoint,
)
from fedsteer.records.names import ARRAYS, BEFORE, CHECKPOINT, MANIFEST, RESULT, SHEET
from fedsteer.report import summarise, to_csv, to_markdown, to_text
from fedsteer.report.entries import title_of
from fedsteer.report.figures import files_of
from fedsteer.report.page import render
from fedsteer.simulate.runner import open_run
from tests.fuzz.judge import Reader, Unfit
from tests.report.made_records import make_run
from tests.simulate.small import cell_of, small, stopped_run

ROWS = ("rounds.jsonl", "clients.jsonl")
PAPER_TABLE = {
    "name": "table9",
    "title": "Table 9",
    "about": "Accuracy.\n\nOf two rules.",
    "commands": ["fedsteer reproduce table9"],
    "figure": "curves",
    "paper": {"digits": {"fedavg": 0.5, "fedsteer (paper)": 0.6}},
    "labels": ["fedavg", "fedsteer (paper)"],
    "seeds": 2,
    "tuning": {},
    "ceilings": {},
}


def document(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unfit from error


@cache
def made_document(figure: str = "") -> dict[str, Any]:
    """Two short runs, and the sheet of a table if a figure is named: {folder: {file: content}}."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for label in ("fedavg", "fedsteer (paper)"):
            run = make_run(Path(name, label), label=label, rounds=4, clients=4)
            files = {file: json.loads((run / file).read_text()) for file in (MANIFEST, RESULT)}
            for file in ROWS:
                lines = (run / file).read_text().splitlines()
                files[file] = [json.loads(line) for line in lines[:12]]
            found[label] = files
    if figure:
        found["."] = {SHEET: PAPER_TABLE | {"figure": figure}}
    return found


def write_document(data: bytes, folder: Path) -> None:
    found = document(data)
    if not isinstance(found, dict) or not all(isinstance(own, dict) for own in found.values()):
        raise Unfit
    for place, (name, files) in enumerate(found.items()):
        own = folder if name == "." else folder / f"{place}"
        own.mkdir(exist_ok=True)
        for file, content in files.items():
            if file not in (MANIFEST, RESULT, SHEET, *ROWS):
                raise Unfit
            if file in ROWS and isinstance(content, list):
                (own / file).write_text("".join(json.dumps(row) + "\n" for row in content))
            else:
                (own / file).write_text(json.dumps(content))


def rows(data: bytes, folder: Path) -> None:
    """Everything that a run tells about itself."""
    write_document(data, folder)
    for run in find_runs(folder):
        assert run.experiment is not None and run.label and run.preset_options is None
        assert run.seed is None or isinstance(run.seed, int)
        assert isinstance(run.finished, bool) and run.failure is None
        run.late()
        run.rows("clients")
    with patch("fedsteer.records.pack.write_archive"):  # it takes its time to pack well
        pack_records([folder], folder / "packed.tar.xz", clients="all")


def bare_file(data: bytes, folder: Path) -> None:
    """The first byte says which file of a run has the rest of the input as its content."""
    run = make_run(folder / "run", label="fedsteer (paper)", rounds=3, clients=3)
    names = (MANIFEST, RESULT, ARRAYS, *ROWS, "failure.json")
    (run / names[data[0] % len(names) if data else 0]).write_bytes(data[1:])
    text_report(folder)


def bare_seeds() -> list[bytes]:
    found = []
    with tempfile.TemporaryDirectory() as name:
        run = make_run(Path(name) / "run", label="fedsteer (paper)", rounds=3, clients=3)
        for place, file in enumerate((MANIFEST, RESULT, ARRAYS, *ROWS)):
            found.append(bytes([place]) + (run / file).read_bytes())
    return [*found, b'\5{"reason": "diverged"}']


def text_report(folder: Path) -> None:
    """The report in all forms but pictures. Other programs read some of them."""
    runs, sheet = find_runs(folder), read_sheet(folder)
    if not (runs := runs_of_sheet(runs, sheet)):
        raise Unfit
    summary = summarise(runs)
    assert list(csv.reader(io.StringIO(to_csv(summary), newline="")))
    page = render(runs, str((sheet or {}).get("title") or title_of(runs)), paper_table=None)
    for text in (to_csv(summary), to_markdown(summary), to_text(summary, 80), page):
        text.encode()


def report(data: bytes, folder: Path) -> None:
    write_document(data, folder)
    text_report(folder)


def pictures(data: bytes, folder: Path) -> None:
    write_document(data, folder)
    sheet = read_sheet(folder)
    if not (runs := runs_of_sheet(find_runs(folder), sheet)):
        raise Unfit
    for name, content in files_of(runs, sheet):
        content.encode()
        if name.endswith(".svg"):
            ElementTree.fromstring(content)


def archive(pack: Callable[[bytes], bytes], data: bytes, folder: Path) -> None:
    path = folder / "records.tar.xz"
    path.write_bytes(pack(data))
    read_sheet(path)
    for run in find_runs(path):
        summarise([run])


@cache
def tar_of_runs() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "records.tar.xz")
        make_run(Path(name, "runs", "seed-0"), rounds=2, clients=2)
        pack_records([Path(name, "runs")], path, clients="all")
        return lzma.decompress(path.read_bytes())


def bare_checkpoint(data: bytes, folder: Path) -> None:
    (folder / "server").write_bytes(data)
    load_server(folder / "server")


def checkpoint(data: bytes, folder: Path) -> None:
    """The JSON in a checkpoint's header; its checksum is right."""
    meta = document(data)
    if not isinstance(meta, dict):
        raise Unfit
    write_checkpoint(folder / "server", server()[1], meta)
    load_server(folder / "server")


def checkpoint_seeds() -> list[bytes]:
    """Without parts beside it, and with an array that is in parts."""
    more = {"dtype": "<f4", "shape": [2, 3], "parts": ["zeros", "zeros"]}
    meta = server()[2]
    return [json.dumps(meta | extra).encode() for extra in ({}, {"parts": {"more": more}})]


@cache
def server() -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """The file of a server between two rounds, its arrays and its header."""
    optimiser, rule = ServerOptimiser("momentum"), make_rule("fedsteer", preset="practical")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "server")
        state = rule.init(3, [1.0, 2.0])
        model, moments = optimiser.step(optimiser.init(), np.zeros(3), np.ones(3))
        save_server(path, state=state, moments=moments, model=model)
        return path.read_bytes(), *read_checkpoint(path)


@cache
def stopped() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-")) / "run"
    stopped_run(folder, 3, "fedsteer")
    return folder


def resumed(data: bytes, folder: Path) -> None:
    """A run that is resumed: {"manifest": ..., "checkpoint": the JSON in its header}.

    It is the checkpoint before the last one, which is gone: the last one would be used instead.
    """
    found = document(data)
    shutil.copytree(stopped(), folder / "run")
    arrays, _ = read_checkpoint(stopped() / CHECKPOINT)
    if not isinstance(found, dict) or not isinstance(meta := found.get("checkpoint"), dict):
        raise Unfit
    (folder / "run" / CHECKPOINT).unlink()
    write_checkpoint(folder / "run" / BEFORE, arrays, meta)
    (folder / "run" / MANIFEST).write_text(json.dumps(found.get("manifest")))
    run = open_run(cell_of(small(), "fedsteer", folder / "run"), resume=True)
    if run is not None:
        run.records.close()


def resumed_seeds() -> list[bytes]:
    manifest = json.loads((stopped() / MANIFEST).read_text())
    _, meta = read_checkpoint(stopped() / CHECKPOINT)
    return [json.dumps({"manifest": manifest, "checkpoint": meta}).encode()]


def made(*figures: str) -> list[bytes]:
    return [json.dumps(made_document(figure)).encode() for figure in figures]


READERS = {
    "records": Reader(rows, partial(made, ""), document=True),
    "records-bare": Reader(bare_file, bare_seeds),
    "report": Reader(report, partial(made, "", "curves"), document=True),
    "pictures": Reader(
        pictures,
        partial(made, "", "curves", "core-size", "heatmap", "errors", "changes", "matrix"),
        document=True,
    ),
    "archive": Reader(partial(archive, partial(lzma.compress, preset=0)), lambda: [tar_of_runs()]),
    "archive-packed": Reader(
        partial(archive, bytes), lambda: [lzma.compress(tar_of_runs(), preset=0)]
    ),
    "checkpoint": Reader(checkpoint, checkpoint_seeds, document=True),
    "checkpoint-bare": Reader(bare_checkpoint, lambda: [server()[0]]),
    "resume": Reader(resumed, resumed_seeds, document=True),
}
