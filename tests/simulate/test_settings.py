"""An experiment written down with the meaning of every setting reads as the same experiment."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from fedsteer.cli import main
from fedsteer.simulate.experiment import KINDS, Experiment
from fedsteer.simulate.experiment_files import load_experiment, settings_toml, shipped_experiments

ODD = {
    "participation.probabilities": [0.5, 0.25],
    "options.fedsteer": {"core_set": [1, 2], "ridge": 1},
    'variants.a "quoted" name': {"rule": "fedsteer", "clusters": {"3": 1}},
    "partition.points": None,
    "title": 'with "quotes" and ±',
}


@pytest.mark.parametrize("name", [*shipped_experiments(), "odd"])
def test_it_reads_as_it_was_written(name: str, tmp_path: Path) -> None:
    experiment = Experiment().changed(ODD) if name == "odd" else load_experiment(name)
    (tmp_path / "mine.toml").write_text(settings_toml(experiment))
    assert load_experiment(str(tmp_path / "mine.toml")) == replace(experiment, name="mine")


def test_every_setting_is_there_and_says_what_it_means() -> None:
    text = settings_toml(Experiment())
    for section in ("data", "partition", "participation", "model", "training", "server", "run"):
        for field in fields(getattr(Experiment(), section)):
            starts = (f"{field.name} = ", f"# {field.name} = ")
            line = next(one for one in text.splitlines() if one.startswith(starts))
            assert "  # " in line and not line.endswith("# ")
    for section, kinds in KINDS.items():
        assert f'kind = "{getattr(Experiment(), section).kind}" ' in text
        for key in {field.name for options in kinds.values() for field in fields(options)}:
            assert f"\n{key} = " in text or f"\n# {key} = " in text
    assert "\n# alpha = 0.3                       # dirichlet: smaller is more skewed\n" in text


def test_on_other_data_it_is_another_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "digits", "--data", "made", "--set", "run.rounds=7"]) == 0
    said = capsys.readouterr().out
    assert "of the labels; here: made" in said and "\nrounds = 7 " in said
    assert main(["settings", "digitz"]) == 2
