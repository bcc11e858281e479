"""What the documentation and the examples say is what there is."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from fedsteer.flower import StrategyOptions, make_strategy

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("flower-*/pyproject.toml"))


def test_the_table_of_options_is_complete() -> None:
    text = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `fedsteer-([a-z-]+)` \|", text, flags=re.MULTILINE))
    assert named == {entry.name.replace("_", "-") for entry in fields(StrategyOptions)} | {"preset"}


def test_there_are_examples() -> None:
    assert [path.parent.name for path in EXAMPLES] == ["flower-digits", "flower-sklearn"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_the_configuration_of_an_example_makes_a_strategy(path: Path) -> None:
    flower = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    strategy = make_strategy(flower["config"]["rule"], flower["config"])
    assert strategy.options.folder is None and strategy.preset == "practical"
    for reference in flower["components"].values():
        module = reference.partition(":")[0].replace(".", "/")
        assert (path.parent / f"{module}.py").exists()
