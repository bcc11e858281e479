"""Every test and make target that docs/guarantees.md and SECURITY.md name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
PAGES = GUARANTEES + (ROOT / "SECURITY.md").read_text(encoding="utf-8")

TESTS = sorted(set(re.findall(r"`(tests/[^`]+)`", PAGES)))
TARGETS = sorted(set(re.findall(r"`make ([a-z-]+)`", PAGES)))


def test_the_pages_name_tests_and_targets() -> None:
    assert len(TESTS) > 50 and {"test", "test-engine", "chaos", "audit"} <= set(TARGETS)


@pytest.mark.parametrize("node", TESTS)
def test_a_test_that_is_named_exists(node: str) -> None:
    path, _, name = node.partition("::")
    body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    found = {entry.name for entry in body if isinstance(entry, ast.FunctionDef)}
    assert name in found if name else any(entry.startswith("test_") for entry in found)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_is_named_exists(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:.*## ", makefile, flags=re.MULTILINE)


def test_every_row_of_a_promise_names_a_test() -> None:
    rows = re.findall(r"^\| (?!:--|.*\| test \|)(.*) \|$", GUARANTEES, flags=re.MULTILINE)
    assert rows and not [row for row in rows if "`tests/" not in row.rpartition(" | ")[2]]
