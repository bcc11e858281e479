"""The benchmarks run. How fast anything is, is not tested; how much code a step touches is."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import fedsteer

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"

# Of practical FedSteer, by benchmarks/crossings.py; the second number is with drift correction.
MOST_CROSSINGS, MOST_CORRECTED, MOST_MODULES, MOST_LINES = 46, 54, 20, 2_150


def benchmark(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_server_step_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    out = tmp_path / "server_step.json"
    printed = benchmark("server_step.py", "--quick", "--out", str(out))
    for part in ("(a)", "(b)", "(c)", "(d)"):
        assert f"\n{part}" in f"\n{printed}"
    results = json.loads(out.read_text(encoding="utf-8"))
    row = results["rows"][0]
    assert row["library"] == "numpy"
    assert row["step"]["three products"] > 0
    assert row["population"]["state bytes"] > 0
    assert results["search"]["brute"] > 0
    assert set(results["scaling"]["step"]) == {"d", "k", "m", "N"}
    assert set(results["scaling"]["search"]) == {"N", "k"}


def test_scaling_measures_every_axis_and_draws_the_same_bytes_again(tmp_path: Path) -> None:
    printed = benchmark("scaling.py", "--quick", "--out", str(tmp_path))
    axes = json.loads((tmp_path / "measurements.json").read_text(encoding="utf-8"))["axes"]
    steps = [f"step over {size}" for size in "Ndkm"]
    assert list(axes) == [*steps, "search over N", "search over k", "round over N"]
    for axis in axes.values():
        assert len(axis["sizes"]) == len(axis["seconds"]) == 3 and min(axis["seconds"]) > 0
    assert all(n > 0 for n in axes["step over N"]["state bytes"] + axes["round over N"]["active"])
    drawn = {name: (tmp_path / name).read_bytes() for name in ("table.md", "scaling.svg")}
    assert printed.strip() == drawn["table.md"].decode().strip()
    texts = {node.text for node in ElementTree.fromstring(drawn["scaling.svg"]).iter()}
    titles = [line.split("|")[1].strip() for line in printed.strip().splitlines()[2:]]
    assert len(titles) == 12 and texts.issuperset(titles)
    for name in drawn:
        (tmp_path / name).unlink()
    benchmark("scaling.py", "--redraw", "--out", str(tmp_path))
    assert drawn == {name: (tmp_path / name).read_bytes() for name in drawn}


def test_the_committed_picture_and_table_are_those_of_the_measurements(tmp_path: Path) -> None:
    committed = ROOT / "results" / "scaling"
    (tmp_path / "measurements.json").write_bytes((committed / "measurements.json").read_bytes())
    benchmark("scaling.py", "--redraw", "--out", str(tmp_path))
    for name in ("table.md", "scaling.svg"):
        assert (tmp_path / name).read_bytes() == (committed / name).read_bytes()


def test_slopes_are_least_squares_with_their_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from costs.fitting import fit

    sizes = [1.0, 10.0, 100.0, 1000.0]
    exact = fit(sizes, [3 * size**1.5 for size in sizes])
    assert exact.slope == pytest.approx(1.5) and exact.at(50.0) == pytest.approx(3 * 50**1.5)
    assert exact.half == pytest.approx(0.0, abs=1e-6)
    assert fit(sizes[:2], [1.0, 2.0]).half is None
    # The interval covers the slope of 95 % of 400 noisy lines, within four standard deviations.
    draw = np.random.default_rng(0)
    x = np.geomspace(1.0, 1e4, 6)
    fits = [fit(x, x**0.5 * np.exp(draw.normal(0, 0.2, 6))) for _ in range(400)]
    covered = np.mean([abs(found.slope - 0.5) <= (found.half or 0.0) for found in fits])
    assert 0.95 - 4 * 0.011 < covered <= 1.0


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("crossings")


def test_a_step_of_fedsteer_stays_in_few_files(crossings: Any) -> None:
    calls = crossings.median_step("fedsteer", "practical")
    assert calls[0].called == "rules/rule.py" and calls[0].function == "step"
    assert all(call.caller != call.called for call in calls)
    assert {"compute", "commit"} <= {call.function for call in calls}
    assert len(calls) <= MOST_CROSSINGS
    corrected = crossings.median_step("fedsteer", "practical", local_rate=0.1)
    assert {"in_round", "take_out"} <= {call.function for call in corrected}
    assert len(corrected) <= MOST_CORRECTED


def test_fedsteer_imports_few_modules(crossings: Any) -> None:
    module = fedsteer.RULES["fedsteer"].__module__
    lines = crossings.closure(module)
    loaded = [name for name in sys.modules if name.startswith("fedsteer.")]
    assert module in lines and set(lines) <= {"fedsteer", *loaded}
    assert len(lines) <= MOST_MODULES and sum(lines.values()) <= MOST_LINES


def test_crossings_are_calls_between_files_of_the_package(crossings: Any) -> None:
    from fedsteer.draws import generator
    from fedsteer.errors import first_line, unknown

    def work() -> str:
        generator(0, "anything")
        return first_line(unknown("word", "tset", ["test"])) + first_line(ValueError("b"))

    result, found = crossings.watch(work)
    assert result == "unknown word 'tset'; did you mean 'test'?b"
    assert [crossing.called for crossing in found] == ["draws.py", "errors.py", *["errors.py"] * 2]
    table = crossings.to_table(found).splitlines()
    assert len(table) == 2 and "first_line x 2" in table[1]


def test_the_closure_follows_imports_at_load_time_only(crossings: Any) -> None:
    text = """
import fedsteer.draws
from fedsteer.steering import table, kernels
from fedsteer.errors import unknown
if TYPE_CHECKING:
    from fedsteer import values
def later():
    from fedsteer import gpu
"""
    assert set(crossings.imported(ast.parse(text))) == {
        "fedsteer.draws",
        "fedsteer.steering.table",
        "fedsteer.steering.kernels",
        "fedsteer.errors",
    }
    assert crossings.closure("fedsteer.draws").keys() == {"fedsteer.draws"}


def test_crossings_prints_both() -> None:
    printed = benchmark("crossings.py", "--rule", "fedavg")
    assert "crossings in one step of fedavg" in printed
    assert "imported by fedsteer.rules.fedavg" in printed
