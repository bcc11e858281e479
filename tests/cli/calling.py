"""Calling the command line: in this process where that is enough, else in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.simulate.small import AS_TOML

ROOT = Path(__file__).resolve().parents[2]
ESCAPE = "\x1b"


def small_file(folder: Path) -> str:
    """An experiment file of a run that takes milliseconds."""
    path = folder / "small.toml"
    path.write_text(AS_TOML)
    return str(path)


def environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def fedsteer(
    *arguments: str,
    folder: Path,
    program: str | None = None,
    told: dict[str, str] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """`python -m fedsteer ...` in a process of its own, where `told` are variables."""
    command = ["-m", "fedsteer"] if program is None else ["-W", "error", "-c", program]
    return subprocess.run(
        [sys.executable, *command, *arguments],
        cwd=folder,
        env=environment() | (told or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )
