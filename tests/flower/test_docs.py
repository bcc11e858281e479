"""The documentation and the examples match the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from fedsteer.flower import StrategyOptions, make_strategy
from fedsteer.flower.options import PREFIX, from_run_config
from fedsteer.records import Run
from tests.flower.fake import FakeGrid, arrays, drifting

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("flower-*/pyproject.toml"))
DOCS = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(fedsteer-[a-z-]+)` \| `([^`]+)` \|", DOCS, flags=re.MULTILINE)


def test_the_table_has_every_option_with_its_default() -> None:
    named = {key.removeprefix(PREFIX).replace("-", "_") for key, _ in ROWS}
    assert named == {entry.name for entry in fields(StrategyOptions)} | {"preset"}
    defaults = tomllib.loads("\n".join(f"{key} = {value}" for key, value in ROWS))
    assert defaults.pop("fedsteer-preset") == "practical"
    assert StrategyOptions(**from_run_config("fedavg", defaults)) == StrategyOptions()


def test_the_snippets_run(tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", DOCS, flags=re.DOTALL)
    grid = FakeGrid({11: drifting(7), 1234567890: drifting(1, report=False)})
    names = {"grid": grid, "arrays": arrays(w=np.zeros(3, np.float32))}
    folder = tmp_path / "run-1"
    for number, snippet in enumerate(snippets, start=1):
        assert "/var/lib/fl/run-1" in snippet and "num_rounds=100" in snippet
        here = snippet.replace("/var/lib/fl/run-1", str(folder))
        exec(here.replace("num_rounds=100", f"num_rounds={number}"), names)
    assert len(snippets) == 2 and len(Run(folder).rounds) == 2
    assert names["strategy"].run.identities.left == {"client-7", "node-1234567890"}  # type: ignore[attr-defined]


def test_there_are_examples() -> None:
    assert [path.parent.name for path in EXAMPLES] == [
        "flower-digits",
        "flower-sklearn",
        "flower-table1",
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_the_configuration_of_an_example_makes_a_strategy(path: Path) -> None:
    flower = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    rule, _, preset = flower["config"]["rule"].partition(":")
    strategy = make_strategy(rule, flower["config"], **({"preset": preset} if preset else {}))
    assert strategy.options.folder is None and strategy.preset == "practical"
    for reference in flower["components"].values():
        module = reference.partition(":")[0].replace(".", "/")
        assert (path.parent / f"{module}.py").exists()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_flower_builds_a_bundle_of_an_example(path: Path, tmp_path: Path) -> None:
    """As for Flower Hub: with a licence, and the versions of Flower it is for."""
    app = tmp_path / "app"
    shutil.copytree(path.parent, app)
    command = [sys.executable, "-m", "flwr.cli.app", "build", "--app", str(app)]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (bundle,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(bundle) as files:
        assert "LICENSE" in files.namelist()
    project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["flwr"]["app"]["fab-format-version"] == 1
