"""What the commands print and leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import fedsteer as package
from fedsteer.cli import main
from fedsteer.data import CATALOGUE
from fedsteer.records import Run
from fedsteer.rules import RULES
from tests.cli.calling import ESCAPE, environment, fedsteer, small_file


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write below the current folder unless told otherwise."""
    monkeypatch.chdir(tmp_path)


def test_the_list_of_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "fedsteer         Old coordinates on today's basis."
    assert "cluster_fedvarp  One remembered update per cluster." in lines
    assert [line.split()[0] for line in lines[: len(RULES)]] == list(RULES)
    width = max(map(len, RULES))
    assert all(line[width : width + 2] == "  " for line in lines[: len(RULES)])
    assert max(map(len, lines)) <= 100
    assert lines[len(RULES) :] == [
        "full             FedAvg with every client present: the yardstick of comparisons.",
        "",
        "fedsteer rules NAME explains one.",
    ]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_explained_with_every_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", name]) == 0
    out = capsys.readouterr().out
    squeezed = " ".join(out.split())
    for entry in fields(RULES[name].options_type):
        assert f"\n  {entry.name} = " in out
        assert " ".join(entry.metadata["help"].split()) in squeezed
    assert "Options of every rule" in out and 'Preset "practical": ' in out
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.parametrize(
    "command", [[], ["run"], ["compare"], ["report"], ["rules"], ["data"], ["bench"]]
)
def test_help_shows_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out and f"  fedsteer {' '.join(command)}" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fedsteer {package.__version__}\n"


def test_the_list_of_data_sets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(CATALOGUE)
    assert main(["data", "check", "digits", "made"]) == 0
    assert main(["data", "check", "--folder", ".", "digits"]) == 0
    assert "training and" in capsys.readouterr().out


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", small_file(tmp_path), "--rule", "fedsteer", "--seed", "3"]) == 0
    said = capsys.readouterr()
    folder = Path("runs", "small", "fedsteer", "seed-3")
    result = Run(folder).result
    assert result is not None
    assert said.err == "" and ESCAPE not in said.out
    groups = result["group_accuracy"]
    assert said.out.splitlines() == [
        f"fedsteer: accuracy {result['accuracy']:.3f} "
        f"(common {groups['common']:.3f}, rare {groups['rare']:.3f})",
        f"  after {result['warm_up_rounds']} rounds of warm-up, which tables should not hide",
        f"  records in {folder}",
    ]


def test_a_run_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", small_file(tmp_path), "--rule", "fedavg", "--out", "here", "--json"]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["folder"] == "here" and said["finished"] is True
    assert said["accuracy"] == Run(Path("here")).result["accuracy"]  # type: ignore[index]
    assert main([*command, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out) == said


def test_options_change_the_experiment(tmp_path: Path) -> None:
    command = ["run", small_file(tmp_path), "--rule", "mine", "--out", "here", "--rounds", "2"]
    command += ["--set", "variants.mine={rule='fedvarp', max_weight=3}"]
    command += ["--set", "training.rate=.05"]
    assert main(command) == 0
    manifest = Run(Path("here")).manifest
    assert manifest["experiment"]["run"]["rounds"] == 2
    assert manifest["experiment"]["training"]["rate"] == 0.05
    assert manifest["rule"]["options"] == {"max_weight": 3}


def test_a_group_without_test_points_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    share = ["--set", "run.test_share=0.000001", "--rule", "fedavg"]
    assert main(["run", small_file(tmp_path), *share]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.count("common") + first.count("rare") == 1


def test_tracking(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    command = ["run", small_file(tmp_path), "--rule", "fedavg", "--out", "here"]
    assert main([*command, "--track", "tensorboard"]) == 0
    (events,) = Path("here", "tensorboard").glob("events.*")
    assert b"accuracy/rare" in events.read_bytes()


def test_python_m_fedsteer(tmp_path: Path) -> None:
    done = fedsteer("rules", folder=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("fedsteer         Old coordinates on today's basis.\n")


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsteer", "rules", "fedsteer"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=tmp_path,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


BARE = """
import sys

BLOCKED = {"rich", "sklearn", "pooch", "psutil", "plotly", "pandas", "scipy", "tensorboard"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(name + " is blocked", name=name)

sys.meta_path.insert(0, Absent())
from fedsteer.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_torch_and_numpy_are_enough_for_a_run(tmp_path: Path) -> None:
    command = ["run", "--data", "made", "--rounds", "3", "--json", "--rule", "fedsteer:practical"]
    command += ["--set", "partition={clients=12, points=10, gamma=0.75}"]
    done = fedsteer(*command, folder=tmp_path, program=BARE)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["rounds"] == 3


def strict(text: str) -> dict[str, object]:
    """JSON as the standard has it: no NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    found: dict[str, object] = json.loads(text, parse_constant=refuse)
    return found


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_comparison(seeds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", small_file(tmp_path), "--rules", "full, fedavg,fedsteer:practical"]
    command += ["--seeds", str(seeds), "--jobs", "1"]
    assert main(command) == 0
    said = capsys.readouterr()
    assert said.err == "" and ESCAPE not in said.out
    out = Path("runs", "compare-small")
    assert said.out.splitlines()[-1] == f"page: {out / 'report.html'}"
    for label in ("full participation", "fedavg", "fedsteer (practical)"):
        assert label in said.out
    assert (out / "report.html").stat().st_size > 1_000
    assert len(list(out.glob("*/seed-*/result.json"))) == 3 * seeds
    assert main([*command, "--resume", "--json"]) == 0
    told = strict(capsys.readouterr().out)
    assert told["folder"] == str(out) and len(told["rules"]) == 3  # type: ignore[arg-type]


def test_the_page_has_the_baseline_of_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", small_file(tmp_path), "--rules", "fedavg,mifa", "--seeds", "1"]
    assert main([*command, "--jobs", "1", "--set", "run.baseline=mifa"]) == 0
    page = Path("runs", "compare-small", "report.html").read_text()
    assert "vs mifa" in capsys.readouterr().out and "vs mifa" in page and "vs fedavg" not in page


def test_a_network_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under the `fedsteer` script, whose first place to look is not the current folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("network_of_mine.py").write_text(
        "from torch import nn\n"
        "def factory(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes))\n"
    )
    setting = ["--set", "model.name=network_of_mine:factory"]
    assert main(["run", small_file(tmp_path), "--rule", "fedavg", "--out", "here", *setting]) == 0
    assert Run(Path("here")).manifest["dim"] == 16 * 4 + 4


def test_a_network_whose_code_has_changed_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = Path("network_that_changes.py")
    code.write_text(
        "from torch import nn\n"
        "def factory(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes), nn.GELU())\n"
    )
    command = ["compare", small_file(tmp_path), "--seeds", "1", "--jobs", "1", "--out", "here"]
    command += ["--set", "model.name=network_that_changes:factory", "--quiet"]
    assert main([*command, "--rules", "fedavg"]) == 0
    assert main([*command, "--rules", "fedavg,mifa"]) == 0
    code.write_text(code.read_text().replace("GELU", "Tanh"))
    capsys.readouterr()
    assert main([*command, "--rules", "fedavg,mifa"]) == 2
    told = capsys.readouterr().err
    assert "network_that_changes.py has changed since here/fedavg/seed-0 was started" in told


def test_runs_that_are_not_on_the_page_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", small_file(tmp_path), "--jobs", "1", "--out", "here", "--quiet"]
    assert main([*command, "--rules", "fedavg,mifa", "--seeds", "2"]) == 0
    assert "other run" not in capsys.readouterr().out
    assert main([*command, "--rules", "mifa", "--seeds", "1"]) == 0
    assert "3 other runs in here are not on it; `fedsteer report here`" in capsys.readouterr().out
