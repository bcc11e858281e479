"""The benchmarks run; what they measure is nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "server_step.py"


def test_server_step_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    out = tmp_path / "server_step.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for part in ("(a)", "(b)", "(c)", "(d)"):
        assert f"\n{part}" in f"\n{done.stdout}"
    results = json.loads(out.read_text(encoding="utf-8"))
    row = results["rows"][0]
    assert row["library"] == "numpy"
    assert row["step"]["three products"] > 0
    assert row["population"]["state bytes"] > 0
    assert results["search"]["brute"] > 0
    assert set(results["scaling"]["step"]) == {"d", "k", "m", "N"}
    assert set(results["scaling"]["search"]) == {"N", "k"}
