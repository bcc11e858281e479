"""Bad input ends in one line and exit code 2; whatever else happens is said as plainly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedsteer.cli import main
from fedsteer.records.names import CHECKPOINT, MANIFEST, MODEL
from tests.cli.calling import fedsteer, small_file


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with an experiment file, a file, and a finished run."""
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    Path("file").write_text("not a folder")
    Path("broken.toml").write_text("seeds = [")
    Path("wrong.toml").write_text("[trainig]\n")
    Path("empty").mkdir()


RUN = "run small.toml --rule fedavg"
MISTAKES = [
    ("run small.toml --rule fedster", "unknown rule 'fedster'; did you mean 'fedsteer'?"),
    ("run small.toml --rule fedsteer:papr", "unknown preset 'papr'; did you mean 'paper'?"),
    ("run digitz", "unknown experiment 'digitz'; did you mean 'digits'?"),
    ("run absent.toml", "absent.toml cannot be read: No such file or directory"),
    ("run broken.toml", "broken.toml is not valid TOML"),
    ("run wrong.toml", "unknown setting 'trainig'; did you mean 'training'?"),
    ("run --data digitz", "unknown data set 'digitz'; did you mean 'digits'?"),
    (
        f"{RUN} --set training.rat=3",
        "unknown setting 'training.rat'; did you mean 'training.rate'?",
    ),
    (f"{RUN} --set rate=3", "unknown setting 'rate'; did you mean training.rate or server.rate?"),
    (f"{RUN} --data empty", "--data names a data set, not a folder; --set data.folder=empty"),
    ("compare small.toml --rules fedavg,mifa,fedavg", "the rule 'fedavg' is named twice"),
    (
        "compare small.toml --rules fedsteer --set options.fedsteer.core_size=13",
        "core_size = 13 of fedsteer is more than partition.clients = 12",
    ),
    (f"{RUN} --set training.rate=fast", "training.rate must be float, not 'fast'"),
    (f"{RUN} --set training.weight_decay=nan", "weight_decay must be at least 0 and finite"),
    (f"{RUN} --set training.rate=1{'0' * 400}", "training.rate must be a number that fits"),
    (f"{RUN} --set training.rate=1{'0' * 5000}", "training.rate must be float, not '1000"),
    (f"{RUN} --set partition.clients=1{'0' * 13}", "partition.clients must be at least 1 and at"),
    (
        "run small.toml --rule fedsteer --set options.fedsteer.search_columns=5",
        "search_columns must be a list of two",
    ),
    (
        "reproduce table1 --only emnist --set partition.alpha=0.1",
        "partition.alpha is for partition",
    ),
    (f"{RUN} --set training.rate=-1", "training.rate must be above 0, not -1.0"),
    (f"{RUN} --set rounds", "--set wants section.key=value, not 'rounds'"),
    (f"{RUN} --set options.fedavg.ridge=1", "unknown option of fedavg 'ridge'"),
    (
        f"{RUN} --set options.fedsteer.rigde=1",
        "unknown option of fedsteer 'rigde'; did you mean 'ridge'?",
    ),
    (
        f"{RUN} --set partition.alpha=0.1",
        "partition.alpha is for partition.kind = dirichlet; here it is label-groups",
    ),
    (f"{RUN} --set participation.trace=/nope", "is for participation.kind = trace"),
    (
        f"{RUN} --set participation.kind=everybody --set participation.weak=0.5",
        "participation.weak is for participation.kind = groups or bernoulli or markov or diurnal",
    ),
    ("run small.toml --rule fedawe --set server.rate=0.1", "server.* has no effect"),
    (f"{RUN} --set server.beta1=0.5", "server.beta1 is for server.method = momentum or adam"),
    (f"{RUN} --set model.options.hidden=[0]", "hidden of model mlp must be whole numbers above 0"),
    (f"{RUN} --set options.fedavg.norm_bound=-1", "norm_bound must be above 0, not -1"),
    (f"{RUN} --set model.name=math:pi", "model 'math:pi' is not a factory"),
    (f"{RUN} --set partition.points=9999", "lower points"),
    (
        f"{RUN} --set participation.mean_on=4.0",  # the default of another kind
        "participation.mean_on is for participation.kind = markov; here it is groups",
    ),
    (f"{RUN} --rounds -3", "run.rounds must be at least 1 and at most 1,000,000,000, not -3"),
    (f"{RUN} --rounds 0", "run.rounds must be at least 1 and at most 1,000,000,000, not 0"),
    (f"{RUN} --seed -1", "--seed must be at least 0, not -1"),
    (f"{RUN} --out file", "cannot write to file: Not a directory"),
    (f"{RUN} --out file/below", "cannot write to file/below: Not a directory"),
    (f"{RUN} --out /proc/nothing", "/proc/nothing: No such file or directory"),
    (f"{RUN} --set run.watch=[99]", "run.watch names 99; clients are 0 to 11"),
    (f"{RUN} --set options.fedsteer.ridge=abc", "options.fedsteer.ridge must be a number, not"),
    ("run small.toml --rule full:papr", "unknown preset 'papr'"),
    (
        f"{RUN} --set participation.reported=wrong --set participation.wrong_noise=1000",
        "participation.wrong_noise must be at least 0 and at most 100, not 1000",
    ),
    ("reproduce list --only x", "--only goes with the name of a table or figure"),
    ("report empty --format md --title x", "--title goes with --format html or svg"),
    ("compare small.toml --seeds 0", "seeds must be at least 1 and at most 10,000, not 0"),
    ("compare small.toml --jobs -1", "--jobs must be at least 0, not -1"),
    ("compare small.toml --rules fedavg,fedster", "did you mean 'fedsteer'?"),
    ("compare small.toml --set options.fedsteer.rigde=1 --rules fedsteer", "did you mean 'ridge'?"),
    ("compare small.toml --set run.baseline=fedvrap", "run.baseline: unknown rule 'fedvrap'"),
    (
        "compare small.toml --rules fedavg --set run.baseline=mifa",
        "run.baseline = mifa is not one of the rules to compare",
    ),
    ("compare small.toml --out file", "cannot write to file"),
    ("report absent", "absent does not exist"),
    ("report empty", "empty holds no runs (no manifest.json below it)"),
    ("report file", "file is not an archive of records"),
    ("reproduce nonsense", "unknown table or figure 'nonsense'; known: adaptive, coreset-size,"),
    ("rules fedster", "unknown rule 'fedster'; did you mean 'fedsteer'?"),
    ("data check digitz", "unknown data set 'digitz'; did you mean 'digits'?"),
]


@pytest.mark.parametrize(("command", "words"), MISTAKES)
def test_one_line_and_code_2(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("fedsteer: ") and said.err.count("\n") == 1
    assert words in said.err
    assert Path("file").read_text() == "not a folder"


def test_a_run_that_diverges_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN.split(), "--set", "training.rate=1e30"]) == 1
    said = capsys.readouterr().err
    assert " stopped: training diverges in round " in said and said.count("\n") == 1
    assert "sent a non-finite update" in said and "options.fedavg.norm_bound may help" in said


@pytest.mark.parametrize(
    "command",
    [
        f"{RUN} --set partition.gamma=7",
        "compare small.toml --set partition.gamma=7",
        "compare small.toml --set partition.gamma=7 --jobs 1",
        "compare small.toml --rules fedster",
        "pack absent --out below/packed.tar.xz",
        "report empty --out below/page.html",
    ],
)
def test_a_mistake_leaves_no_folder(command: str) -> None:
    before = sorted(Path().rglob("*"))
    assert main(command.split()) == 2
    assert sorted(Path().rglob("*")) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN.split(), "--device", "cuda"]) == 2
    assert capsys.readouterr().err == (
        "fedsteer: device 'cuda' was asked for, but there is no CUDA here\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        "walk",
        "run --rouns 3",
        "run --rounds three",
        "run --device tpu",
        "report",
        "data",
        "data eat",
        "data fetch",
    ],
)
def test_what_argparse_refuses(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("fedsteer") and said.err.count("\n") == 1
    assert "--help says more" in said.err


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "usage: fedsteer" in said.err and "examples:" in said.err


def test_a_mistake_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = fedsteer("run", "small.toml", "--rule", "fedster", folder=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "fedsteer: unknown rule 'fedster'; did you mean 'fedsteer'?\n"


def test_a_full_disk_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device", "rounds.jsonl")

    monkeypatch.setattr("fedsteer.simulate.runner.write_checkpoint", full)
    assert main(RUN.split()) == 2
    assert capsys.readouterr().err == ("fedsteer: rounds.jsonl: No space left on device\n")


def test_a_comparison_is_refused_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    def compare(*more: str) -> int:
        return main(["compare", "small.toml", "--seeds", "1", "--out", "here", "--quiet", *more])

    assert compare("--rules", "fedavg") == 0
    before = sorted(Path("here").rglob("*"))
    assert compare("--rules", "mifa,fedavg", "--rounds", "3") == 2  # mifa comes first
    assert "here/fedavg/seed-0 holds a run with another" in capsys.readouterr().err
    assert sorted(Path("here").rglob("*")) == before
    assert compare("--rules", "mifa,fedavg") == 0


def test_runs_and_comparisons_have_folders_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    compare = ["compare", "small.toml", "--seeds", "1", "--rules", "fedavg", "--quiet", "--out"]
    assert main([*compare, "many"]) == 0
    assert main([*RUN.split(), "--out", "one"]) == 0
    capsys.readouterr()
    assert main([*compare, "one"]) == 2
    assert "one holds a run, not a comparison" in capsys.readouterr().err
    assert main([*RUN.split(), "--out", "many"]) == 2
    assert "many holds a comparison, not a run" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_an_encoding_lacks_costs_nothing_else(encoding: str, tmp_path: Path) -> None:
    assert main([*RUN.split(), "--out", "her\u00e9\u2191"]) == 0
    assert (
        main(
            ["compare", "small.toml", "--seeds", "2", "--rules", "fedavg", "--quiet", "--out", "c"]
        )
        == 0
    )
    for command in ("report c --format text", "report c --out -", "report c --format svg"):
        program = "import sys; from fedsteer.cli import main; sys.exit(main(sys.argv[1:]))"
        told = {"PYTHONIOENCODING": encoding}
        made = fedsteer(
            *command.split(), folder=tmp_path, program=program, told=told, errors="replace"
        )
        assert made.returncode == 0 and not made.stderr, made.stderr
        assert made.stdout.count("fedavg") >= 1


def test_a_folder_that_holds_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    command = [*RUN.split(), "--out", "here"]
    assert main(command) == 0
    capsys.readouterr()
    for change, words in [
        (["--seed", "1"], "here holds a run with another seed (0, now 1); choose another --out"),
        (
            ["--set", "training.rate=1"],
            "another experiment.training.rate (0.1, now 1.0)",
        ),
        (["--rule", "mifa"], "here holds a run with another rule."),
        ([], "here already holds this run; --resume continues it"),
    ]:
        assert main([*command, *change]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1


def test_a_damaged_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    command = [*RUN.split(), "--out", "here"]
    assert main(command) == 0
    Path("here", "result.json").unlink()
    checkpoint = Path("here", CHECKPOINT)
    checkpoint.write_bytes(Path("here", MODEL).read_bytes()[:200])
    capsys.readouterr()
    assert main([*command, "--resume"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"fedsteer: {checkpoint} is not a checkpoint") and said.count("\n") == 1
    assert said.endswith("; restore here from a copy, or remove it to start over\n")


@pytest.mark.parametrize("name", [CHECKPOINT, MANIFEST, "rounds.jsonl"])
@pytest.mark.parametrize("rules", ["fedavg,mifa", "fedavg"])
def test_a_damaged_run_of_a_comparison_is_told_at_the_end(
    rules: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the table shows the others, if there are any."""
    command = ["compare", "small.toml", "--seeds", "1", "--rules", rules, "--quiet", "--out", "all"]
    assert main(["compare", *command[1:5], "fedavg", *command[6:]]) == 0
    bad = Path("all", "fedavg", "seed-0")
    if name != "rounds.jsonl":
        (bad / "result.json").unlink()
        (bad / CHECKPOINT).write_bytes(b"torn")
    (bad / name).write_bytes(b"torn\n")
    capsys.readouterr()
    assert main(command) == 1
    told = capsys.readouterr()
    assert told.err.startswith(f"fedsteer: {bad} stopped: {bad / name}")
    assert told.err.count("\n") == 1
    assert ("mifa" in told.out) == ("mifa" in rules)
