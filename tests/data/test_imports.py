from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["fedsteer.data", "fedsteer.participation"])
def test_importing_needs_numpy_only(package: str) -> None:
    program = (
        f"import sys, {package}; print(sorted({{'torch', 'sklearn', 'pooch'}} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
