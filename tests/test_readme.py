"""The README's snippets run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsteer.cli import build_parser

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in snippets("sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_exist(command: list[str]) -> None:
    assert command[0] == "fedsteer"
    build_parser().parse_args(command[1:])


def test_the_library_snippet_moves_the_model() -> None:
    names: dict[str, Any] = {}
    exec(snippets("python")[0], names)
    assert names["step"].action == "move" and np.any(names["model"])


def test_the_flower_snippet_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from tests.flower.drifting_clients import INITIAL, world
    from tests.flower.fake import arrays, values

    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"grid": world(), "arrays": arrays(**INITIAL)}
    exec(snippets("python")[1], names)
    assert np.any(values(names["result"].arrays)["w"])
    assert (tmp_path / "runs" / "flower" / "rounds.jsonl").exists()
