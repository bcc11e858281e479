"""`make audit`: which licences pass, and what the answers of pip-audit mean."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TOOLS))
    return import_module("audit")


def package(folder: Path, name: str, *lines: str) -> Distribution:
    about = folder / f"{name}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("\n".join([f"Name: {name}", "Version: 1", *lines, "", ""]))
    return Distribution.at(about)


@pytest.mark.parametrize(
    ("lines", "licence"),
    [
        (["License-Expression: MIT OR GPL-3.0-only", "License: GPL"], "MIT OR GPL-3.0-only"),
        (["License: MIT\n        and much more"], "MIT"),
        (
            [
                "License: long text",
                "Classifier: License :: OSI Approved :: BSD License",
                "Classifier: License :: Public Domain",
                "Classifier: Typing :: Typed",
            ],
            "BSD License AND Public Domain",
        ),
        ([], "unknown"),
    ],
)
def test_the_licence_of_a_package(
    lines: list[str], licence: str, audit: Any, tmp_path: Path
) -> None:
    assert audit.licence_of(package(tmp_path, "one", *lines)) == licence


@pytest.mark.parametrize(
    ("licence", "passes"),
    [
        ("MIT", True),
        ("Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND MIT", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND GPL-3.0-only", False),
        ("GNU Affero General Public License v3", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_allowed_licences(licence: str, passes: bool, audit: Any) -> None:
    assert audit.allowed(licence) is passes


def test_packages_with_another_licence_are_named(audit: Any, tmp_path: Path) -> None:
    packages = [
        package(tmp_path, "plain", "License-Expression: MIT"),
        package(tmp_path, "other", "License-Expression: AGPL-3.0-only"),
        package(tmp_path, "nvidia-cudnn", "License: NVIDIA Proprietary Software"),
    ]
    table, wrong = audit.licences(packages)
    assert table == [
        "AGPL-3.0-only: other",
        "MIT: plain",
        "NVIDIA Proprietary Software: nvidia-cudnn",
    ]
    assert wrong == ["other has a licence that is not in the list: AGPL-3.0-only"]


SKIPPED = {"name": "a", "skip_reason": "Dependency not found"}
CLEAN = {"name": "b", "version": "1", "vulns": []}
WEAK = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1", "3"]}]}


def test_vulnerabilities_are_named(audit: Any) -> None:
    line, wrong = audit.vulnerabilities(json.dumps({"dependencies": [SKIPPED, CLEAN, WEAK]}))
    assert line == "looked up 2 of 3 pinned versions"
    assert wrong == ["c 2: CVE-1, put right in 2.1, 3"]


@pytest.mark.parametrize("report", ["", "[]", json.dumps({"dependencies": [SKIPPED]})])
def test_a_service_that_says_nothing_is_no_clean_bill(report: str, audit: Any) -> None:
    line, wrong = audit.vulnerabilities(report)
    assert line.endswith("nothing is known") and not wrong


@pytest.mark.parametrize(("report", "code"), [({"dependencies": [WEAK]}, 1), (None, 0)])
def test_it_fails_for_what_is_known_and_not_for_a_service_out_of_reach(
    report: Any,
    code: int,
    audit: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = tmp_path / "pip-audit"
    said = f"echo '{json.dumps(report)}'; exit 1" if report else "echo 'no network' >&2; exit 1"
    script.write_text(f"#!/bin/sh\n{said}\n")
    script.chmod(0o755)
    monkeypatch.setattr(audit, "distributions", lambda: [])
    assert audit.main(str(script)) == code
    assert ("c 2: CVE-1" if report else "nothing is known. no network") in capsys.readouterr().out
