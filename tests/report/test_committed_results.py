"""The files under results/ are what the committed records give, byte for byte."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from fedsteer.records import find_runs, pack_records
from fedsteer.report.figures import table_of
from tests.report.made_records import make_comparison

ROOT = Path(__file__).resolve().parents[2]
ARCHIVES = sorted((ROOT / "results").glob("*/records.tar.xz"))
MOST_BYTES = 2_000_000


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("regenerate", ROOT / "results" / "regenerate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_committed_records() -> None:
    assert ROOT / "results" / "digits" / "records.tar.xz" in ARCHIVES


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.parent.name)
def test_archives_are_small_and_hold_finished_runs(archive: Path) -> None:
    assert archive.stat().st_size < MOST_BYTES
    assert all(run.finished or run.failure for run in find_runs(archive))


def test_committed_files_come_from_committed_records(script: ModuleType) -> None:
    found = script.regenerated(ROOT)
    assert ROOT / "README.md" in found, "the README's table is between its comments"
    differ = [path for path, content in found.items() if path.read_bytes() != content.encode()]
    assert not differ, "run `make results`"


def test_regenerating_rewrites_what_differs(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = make_comparison(tmp_path / "runs", ["fedavg", "mifa"], 2, 6, 4)
    pack_records([runs], tmp_path / "results" / "made" / "records.tar.xz")
    shutil.rmtree(runs)
    readme = tmp_path / "README.md"
    readme.write_text(
        "<!-- table of results/made: rule, seeds -->\nold\n<!-- end of table -->\nend"
    )
    monkeypatch.setattr(script, "ROOT", tmp_path)
    assert script.main(["--check"]) == 1
    assert "old" in readme.read_text() and "README.md differs" in capsys.readouterr().out
    assert script.main([]) == 0 and script.main(["--check"]) == 0
    table = "| rule | seeds |\n| :-- | --: |\n| mifa | 2 |\n| fedavg | 2 |\n"
    assert f"rule, seeds -->\n\n{table}\n<!-- end of table -->\nend" in readme.read_text()
    made = find_runs(tmp_path / "results" / "made")
    assert (tmp_path / "results" / "made" / "table.md").read_text() == table_of(made, None)
    readme.write_text(readme.read_text().replace("rule, seeds", "rule, sedes"))
    assert script.main([]) == 2 and "unknown column 'sedes'" in capsys.readouterr().err
    assert script.main(["--help"]) == 2
