"""Licences of what is installed here, and known vulnerabilities of what constraints.txt pins.

    make audit

Exit code 1: a licence that is not in ALLOWED, or a known vulnerability. Where the service that
knows vulnerabilities cannot be reached, one line says so, and nothing fails for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

PINNED = Path(__file__).parents[1] / "constraints.txt"

# SPDX names, and below them what older packages write.
ALLOWED = """
0BSD | Apache-2.0 | Apache-2.0 WITH LLVM-exception | BSD-2-Clause | BSD-3-Clause | BSL-1.0 | CC0-1.0
| ISC | MIT | MIT-0 | MIT-CMU | MPL-2.0 | PSF-2.0 | Zlib

| 3-Clause BSD License | Apache 2.0 | Apache License 2.0 | Apache Software License | BSD
| BSD License | ISC License (ISCL) | MIT License | Mozilla Public License 2.0 (MPL 2.0)
| Public Domain | Python Software Foundation License
"""
NAMES = {name.strip() for name in ALLOWED.split("|")}

NVIDIA = ("nvidia-", "cuda-")
"""Libraries that torch brings along for CUDA: not free, and no part of what fedsteer passes on."""


def licence_of(package: Distribution) -> str:
    """As its metadata say: an SPDX expression, or else classifiers, or else a line of text."""
    about: Any = package.metadata
    if about["License-Expression"]:
        return str(about["License-Expression"])
    found = [line for line in about.get_all("Classifier", []) if line.startswith("License :: ")]
    if found:
        return " AND ".join(line.rpartition(" :: ")[2] for line in found)
    lines = (about["License"] or "").splitlines()
    return lines[0].strip() if lines else "unknown"


def allowed(licence: str) -> bool:
    """One of several by choice must be in the list, or all that apply together.

    An expression with brackets is not understood, and so not allowed.
    """
    choices = [choice.split(" AND ") for choice in licence.split(" OR ")]
    return any(NAMES.issuperset(together) for together in choices)


def licences(packages: Iterable[Distribution]) -> tuple[list[str], list[str]]:
    """A table, and the packages whose licence is not allowed."""
    groups = defaultdict(set)
    for package in packages:
        groups[licence_of(package)].add(package.metadata["Name"])
    table = [f"{found}: {', '.join(sorted(groups[found]))}" for found in sorted(groups)]
    wrong = [
        f"{name} has a licence that is not in the list: {found}"
        for found, names in groups.items()
        if not allowed(found)
        for name in sorted(names)
        if not name.startswith(NVIDIA)
    ]
    return table, wrong


def vulnerabilities(report: str) -> tuple[str, list[str]]:
    """What the JSON of pip-audit tells: how much was looked at, and what was found.

    A service that knows none of the packages says nothing about them, though pip-audit then reports
    no vulnerabilities.
    """
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        packages = []
    known = [package for package in packages if "vulns" in package]
    if not known:
        return "the vulnerability service could not be reached: nothing is known", []
    wrong = [
        f"{package['name']} {package['version']}: {entry['id']}, put right in "
        + (", ".join(entry["fix_versions"]) or "no version")
        for package in known
        for entry in package["vulns"]
    ]
    return f"looked up {len(known)} of {len(packages)} pinned versions", wrong


def main(pip_audit: str) -> int:
    table, unusual = licences(distributions())
    print(*table, "", sep="\n")
    asked = [pip_audit, "--requirement", str(PINNED), "--no-deps", "--disable-pip"]
    shown = ["--format", "json", "--progress-spinner", "off"]
    done = subprocess.run([*asked, *shown], capture_output=True, text=True, check=False)
    line, vulnerable = vulnerabilities(done.stdout)
    print(f"Vulnerabilities: {line}.", *([] if done.stdout else done.stderr.splitlines()[-1:]))
    for wrong in unusual + vulnerable:
        print(wrong)
    return 1 if unusual or vulnerable else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
