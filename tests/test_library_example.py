"""The loop of docs/library.md, with every rule."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from fedsteer import RULES

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "library" / "server_loop.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("server_loop", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", RULES)
def test_every_rule_learns_and_outlives_checkpoints(
    example: ModuleType, name: str, tmp_path: Path
) -> None:
    away = example.run(name, folder=tmp_path)
    assert away < 0.6
    assert example.run(name) == away


def test_the_document_shows_the_example() -> None:
    text = (ROOT / "docs" / "library.md").read_text()
    shown = text.split("```python\n")[1].split("```")[0]
    assert shown in EXAMPLE.read_text()
