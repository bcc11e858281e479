"""What a run finds in its folder, or beside it, and does not take: other runs, damage, change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsteer import rules
from fedsteer.errors import ConfigurationError
from fedsteer.records import RecordWriter, Run
from fedsteer.records.files import write_json
from fedsteer.simulate.runner import Interrupted, run_cell
from tests.files import read_json
from tests.simulate.small import cell_of, run_small, small


def stopped(folder: Path, entry: str, **settings: Any) -> None:
    """A run that was stopped after a few rounds."""
    experiment = small({key.replace("__", "."): value for key, value in settings.items()})
    rounds = iter((False, False, False, True))
    with pytest.raises(Interrupted):
        run_cell(cell_of(experiment, entry, folder), stop=lambda: next(rounds))


@pytest.mark.parametrize("rate", [0.1, 0.05])
def test_who_waited_for_a_folder_looks_again(
    rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process ran there in the meantime, the same run or another."""
    claim = RecordWriter._claim

    def run_meanwhile(records: RecordWriter, patience: float) -> None:
        monkeypatch.setattr(RecordWriter, "_claim", claim)
        run_small(tmp_path / "run", "fedavg", training__rate=rate)
        claim(records, patience)

    monkeypatch.setattr(RecordWriter, "_claim", run_meanwhile)
    words = "already holds this run" if rate == 0.1 else "another experiment.training.rate"
    with pytest.raises(ConfigurationError, match=words):
        run_small(tmp_path / "run", "fedavg", training__rate=0.1)
    assert Run(tmp_path / "run").manifest["experiment"]["training"]["rate"] == rate


@pytest.mark.parametrize(("section", "key"), [("clients", "sizes"), ("data", "checksums")])
def test_a_run_started_with_other_data_is_not_resumed(
    section: str, key: str, tmp_path: Path
) -> None:
    stopped(tmp_path / "run", "fedavg")
    path = tmp_path / "run" / "manifest.json"
    manifest = read_json(path)
    manifest[section][key] = [1.0] if key == "sizes" else {"made": "other"}
    write_json(path, manifest)
    with pytest.raises(ConfigurationError, match=rf"was started with other {section} \({key}\)"):
        run_small(tmp_path / "run", "fedavg", resume=True)


def test_an_empty_result_is_no_end(tmp_path: Path) -> None:
    stopped(tmp_path / "run", "fedavg")
    (tmp_path / "run" / "result.json").write_text("{}")
    run = run_small(tmp_path / "run", "fedavg", resume=True)
    assert run.finished and len(run.rounds) == 6


def test_a_trace_that_has_changed_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("client,start,end\n" + "".join(f"{c},0,6000\n" for c in range(12)))
    settings = {"participation__kind": "trace", "participation__trace": str(trace)}
    stopped(tmp_path / "run", "fedavg", **settings)
    before = trace.read_text()
    trace.write_text(before.replace("11,0,", "11,1200,"))
    with pytest.raises(ConfigurationError, match="has changed since"):
        run_small(tmp_path / "run", "fedavg", resume=True, **settings)
    trace.write_text(before)
    moved = settings | {"participation__trace": str(tmp_path / "moved.csv")}
    trace.rename(tmp_path / "moved.csv")
    manifest = read_json(tmp_path / "run" / "manifest.json")
    checksum = manifest.pop("trace")
    write_json(tmp_path / "run" / "manifest.json", manifest)  # as older runs have it
    with pytest.raises(ConfigurationError, match=r"another experiment\.participation\.trace"):
        run_small(tmp_path / "run", "fedavg", resume=True, **moved)
    write_json(tmp_path / "run" / "manifest.json", manifest | {"trace": checksum})
    assert run_small(tmp_path / "run", "fedavg", resume=True, **moved).finished


def test_what_rules_are_not_told_chooses_no_core_set(tmp_path: Path) -> None:
    """The most frequent clients are those of the probabilities that are told."""
    options = {"options__fedsteer": {"core_size": 3, "select": "frequent"}}
    assert run_small(tmp_path / "known", "fedsteer", **options).finished
    with pytest.raises(ConfigurationError, match="needs frequencies"):
        run_small(tmp_path / "not", "fedsteer", participation__reported="estimated", **options)


def test_a_resumed_run_keeps_what_its_preset_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = "fedsteer:practical"
    whole = run_small(tmp_path / "whole", entry)
    stopped(tmp_path / "run", entry)
    monkeypatch.setitem(rules.PRACTICAL, "norm_bound", 0.01)
    resumed = run_small(tmp_path / "run", entry, resume=True)
    assert resumed.rows("rounds") == whole.rows("rounds")
    other = run_small(tmp_path / "new", entry)
    assert other.rows("rounds") != whole.rows("rounds")
