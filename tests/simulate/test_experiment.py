"""Experiment files and settings: what is taken, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsteer.data import PARTITIONS
from fedsteer.errors import ConfigurationError
from fedsteer.rules import RULES
from fedsteer.simulate.cells import find_rule
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.experiment_files import load_experiment, parse_settings, shipped_experiments
from fedsteer.training import make_network
from tests.simulate.small import AS_TOML, small

SHAPES = {
    "digits": ((1, 8, 8), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "emnist-bymerge": ((1, 28, 28), 47),
    "cifar-10": ((3, 32, 32), 10),
}


@pytest.mark.parametrize("name", shipped_experiments())
def test_shipped_experiments_load_and_their_rules_can_be_built(name: str) -> None:
    experiment = load_experiment(name)
    assert experiment.name == name and experiment.title
    for text in experiment.rules:
        find_rule(experiment, text).build(experiment, 0)
    assert experiment.run.baseline in experiment.rules
    shape, classes = SHAPES[experiment.data.name]
    assert make_network(experiment.model.name, shape, classes, experiment.model.options).dim


def test_the_default_compares_every_rule() -> None:
    experiment = load_experiment("digits")
    assert {find_rule(experiment, text).name for text in experiment.rules} == set(RULES)
    assert {"full", "fedsteer:practical"} <= set(experiment.rules)


def test_a_file_and_settings_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(AS_TOML)
    assert load_experiment(str(path)) == small()
    assert load_experiment(str(path), {"run.rounds": 9}) == small({"run.rounds": 9})


def test_the_name_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("seeds = 1\n")
    assert load_experiment(str(path)) == Experiment(name="mine", seeds=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[trainig]\nrate = 1.0", "unknown setting 'trainig'; did you mean 'training'"),
        (
            "[training]\nrat = 1.0",
            r"unknown setting 'training\.rat'; did you mean 'training\.rate'",
        ),
        ("training = 3", "training is a section, not a value"),
        ("[run]\nrounds = 2.5", "run.rounds must be int, not 2.5"),
        ("[run]\nrounds = true", "run.rounds must be int, not True"),
        ("[run]\nrounds = '5'", "run.rounds must be int, not '5'"),
        ("[run]\nrounds = 0", "run.rounds must be at least 1 and at most 1,000,000,000, not 0"),
        ("[run]\nevaluate_every = 0", "run.evaluate_every must be at least 1, not 0"),
        ("[run]\ncheckpoint_every = 0", "run.checkpoint_every must be at least 1, not 0"),
        ("[run]\ntest_share = 0", "run.test_share must be above 0 and at most 1, not 0"),
        ("[run]\ntest_share = 1.5", "run.test_share must be above 0 and at most 1, not 1.5"),
        ("[run]\nthreads = -1", "run.threads must be at least 0 and at most 1,024, not -1"),
        ("[run]\ndevice = 'tpu'", "unknown run.device 'tpu'"),
        ("[training]\nrate = inf", "rate must be above 0 and finite"),
        ("[server]\nrate = inf", "server.rate must be above 0 and finite"),
        ("rules = []", "rules must name at least one rule"),
        ("name = '../../up'", "name must be the name of a folder"),
        ("name = ''", "name must be the name of a folder"),
        ("seeds = 0", "seeds must be at least 1 and at most 10,000, not 0"),
        (
            "[partition]\nclients = 0",
            "partition.clients must be at least 1 and at most 10,000,000, not 0",
        ),
        ("[partition]\nkind = 'iit'", "unknown partition.kind 'iit'; did you mean 'iid'"),
        ("[partition]\nkind = 3", "partition.kind must be str, not 3"),
        ("[partition]\ngama = 0.7", r"did you mean 'partition\.gamma'"),
        ("[partition]\nkid = 'iid'", r"did you mean 'partition\.kind'"),
        ("[participation]\nmean_onn = 9", r"did you mean 'participation\.mean_on'"),
        ("[partition]\ngamma = 7", "partition.gamma must be above 0 and below 1, not 7"),
        (
            "[partition]\nkind = 'iid'\ngamma = 0.7",
            "partition.gamma is for partition.kind = label-groups; here it is iid",
        ),
        (
            "[participation]\nmean_on = 9",
            "participation.mean_on is for participation.kind = markov; here it is groups",
        ),
        ("[partition]\nreplace = 1", "partition.replace must be bool, not 1"),
        ("[partition]\npoints = 'all'", "partition.points must be int or none, not 'all'"),
        ("[data]\nname = 3", "data.name must be str, not 3"),
        ("[model]\noptions = 3", "model.options is a table of options, not a value"),
        ("rules = 'fedavg'", "rules must be list, not 'fedavg'"),
        ("rules = [1]", "every entry of rules must be str, not 1"),
        ("[run]\nwatch = ['a']", "every entry of run.watch must be int, not 'a'"),
        ("[participation]\nprobabilities = ['a']", "every entry of participation.probabilities"),
        ("options = 3", "options is a table of options, not a value"),
        ("options.fedavg = 3", "options.fedavg is a table, not a value"),
        ("options.fedsteeer.ridge = 3", "unknown rule in options 'fedsteeer'; did you mean"),
        ("variants.mine = 3", "variants.mine is a table, not a value"),
        ("[server]\nmethod = 'adm'", "did you mean 'adam'"),
        ("[server]\nrate = 0", "server.rate must be above 0"),
        ("[training]\nepochs = 0", "epochs must be at least 1"),
        ("rules = [", "is not valid TOML"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_experiment(str(path))
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xef\xbb\xbfseeds = 3\n")
    assert load_experiment(str(tmp_path / "mine.toml")).seeds == 3


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.toml cannot be read: No such file"):
        load_experiment(str(tmp_path / "absent.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigurationError, match=r"cannot be read: Is a directory"):
        load_experiment(str(tmp_path / "folder.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match=r"not valid TOML: .utf-8. codec"):
        load_experiment(str(tmp_path / "binary.toml"))
    with pytest.raises(ConfigurationError, match="unknown experiment 'digts'; did you mean"):
        load_experiment("digts")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("0.5", 0.5),
        (".5", 0.5),
        ("-.5", -0.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("markov", "markov"),
        ("'a b'", "a b"),
        ("a=b", "a=b"),
        ("", ""),
        ("none", "none"),
        ("[1, 2]", [1, 2]),
        ("{hidden = [3]}", {"hidden": [3]}),
        (".hidden", ".hidden"),
        ("./data", "./data"),
    ],
)
def test_values_of_settings(text: str, value: Any) -> None:
    found = parse_settings([f"section.key={text}"])
    assert found == {"section.key": value}
    assert type(found["section.key"]) is type(value)


def test_settings_come_in_order_and_the_last_counts() -> None:
    pairs = ["run.rounds=3", "training.rate=1", "run.rounds=4", "partition.points=none"]
    experiment = Experiment().changed(parse_settings(pairs))
    assert experiment.run.rounds == 4
    assert experiment.training.rate == 1.0 and isinstance(experiment.training.rate, float)
    assert experiment.partition.points is None


def test_settings_add_to_options() -> None:
    experiment = small().changed(parse_settings(["options.fedsteer.ridge=1"]))
    assert experiment.options["fedsteer"] == {"core_size": 3, "cycles": 1, "ridge": 1}
    assert small().options["fedsteer"] == {"core_size": 3, "cycles": 1}, "the original is untouched"


def test_options_go_with_the_name_they_came_with() -> None:
    experiment = small().changed(parse_settings(["model.name=logistic", "data.name=digits"]))
    assert experiment.model.options == experiment.data.options == {}
    same = small().changed(parse_settings(["model.name=mlp", "model.options.activation=tanh"]))
    assert same.model.options == {"hidden": [6], "activation": "tanh"}
    other = small().changed(parse_settings(["model.name=fashion-cnn", "model.options.padding=1"]))
    assert other.model.options == {"padding": 1}


def test_another_kind_keeps_the_settings_it_knows() -> None:
    start = small({"partition.gamma": 0.6, "participation.weak": 0.2})
    changed = start.changed({"partition.kind": "dirichlet", "participation.kind": "markov"})
    assert (changed.partition.kind, changed.partition.clients) == ("dirichlet", 12)
    assert changed.participation.weak == 0.2  # type: ignore[attr-defined]
    back = changed.changed({"partition.kind": "label-groups"})
    assert back.partition.gamma == Experiment().partition.gamma  # type: ignore[attr-defined]


def test_defaults_of_other_kinds_in_a_file_do_no_harm(tmp_path: Path) -> None:
    """`fedsteer settings` once wrote the settings of all kinds."""
    path = tmp_path / "mine.toml"
    path.write_text("[partition]\nkind = 'iid'\nalpha = 0.3\ngamma = 0.9\nclients = 7\n")
    assert load_experiment(str(path)).partition == PARTITIONS["iid"](clients=7)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["rounds"], "--set wants section.key=value, not 'rounds'"),
        (["=3"], "--set wants section.key=value"),
        (["rounds=3"], "unknown setting 'rounds'"),
        (["run.round=3"], "did you mean 'run.rounds'"),
        (["run.rounds=abc"], "run.rounds must be int, not 'abc'"),
        (["run=3"], "run is a section, not a value"),
        (["run.rounds=3", "run.rounds.more=4"], "run.rounds.more is below a setting"),
        (["seeds.x=3"], "seeds must be int"),
    ],
)
def test_mistakes_in_settings(pairs: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Experiment().changed(parse_settings(pairs))


def test_entries() -> None:
    experiment = small({"variants.mine": {"rule": "fedsteer", "ridge": 2.0, "preset": "practical"}})
    plain = find_rule(experiment, "fedsteer")
    assert (plain.label, plain.slug, plain.preset) == ("fedsteer", "fedsteer", "paper")
    assert plain.options == {"core_size": 3, "cycles": 1}
    assert find_rule(experiment, "fedsteer:paper") == plain
    practical = find_rule(experiment, "fedsteer:practical")
    assert (practical.label, practical.slug) == ("fedsteer (practical)", "fedsteer-practical")
    full = find_rule(experiment, "full")
    assert (full.label, full.name, full.everybody) == ("full participation", "fedavg", True)
    mine = find_rule(experiment, "mine")
    assert (mine.label, mine.name, mine.preset) == ("mine", "fedsteer", "practical")
    assert mine.options == {"core_size": 3, "cycles": 1, "ridge": 2.0}
    assert experiment.variants["mine"]["rule"] == "fedsteer", "the experiment is untouched"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fedster", "unknown rule 'fedster'; did you mean 'fedsteer'"),
        ("ful", "did you mean 'full'"),
        ("min", "did you mean 'mine'"),
        ("fedsteer:papr", "unknown preset 'papr'; did you mean 'paper'"),
        ("", "unknown rule ''"),
        ("lost", "unknown rule 'fedlost'"),
        ("hurried", "unknown preset 'fast'"),
        ("mistaken", "unknown option of fedavg 'ridge'"),
    ],
)
def test_mistakes_in_entries(text: str, words: str) -> None:
    experiment = small(
        {
            "variants.mine": {"rule": "fedsteer"},
            "variants.lost": {"rule": "fedlost"},
            "variants.hurried": {"rule": "fedavg", "preset": "fast"},
            "variants.mistaken": {"rule": "fedavg", "ridge": 1.0},
        }
    )
    with pytest.raises(ConfigurationError, match=words):
        find_rule(experiment, text).build(experiment, 0)


def test_a_rule_is_told_what_the_experiment_knows() -> None:
    experiment = small({"training.rate": 0.03, "participation.reported": "estimated"})
    rule = find_rule(experiment, "scaffold").build(experiment, 7)
    assert rule.options.local_rate == 0.03  # type: ignore[attr-defined]
    momentum = small({"training.rate": 0.03, "training.momentum": 0.9})
    told = find_rule(momentum, "scaffold").build(momentum, 7).options
    assert told.local_rate == pytest.approx(0.3)  # type: ignore[attr-defined]
    assert rule.options.seed == 7
    assert rule.options.probabilities == "shrunk"
    assert find_rule(experiment, "full").build(experiment, 0).options.probabilities == "known"


def test_clients_in_tables_of_a_file_are_numbers() -> None:
    table = {"rule": "fedsteer", "select": "frequent", "frequencies": {"3": 0.5, "11": 0.7}}
    experiment = small({"variants.mine": table})
    rule = find_rule(experiment, "mine").build(experiment, 0)
    assert rule.options.frequencies == {3: 0.5, 11: 0.7}  # type: ignore[attr-defined]


def test_options_may_be_numbers_of_libraries() -> None:
    experiment = small({"options.fedsteer.ridge": np.array(0.25)})
    assert find_rule(experiment, "fedsteer").build(experiment, 0).options.ridge == 0.25  # type: ignore[attr-defined]


def test_files_are_beside_the_experiment_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "e.toml").write_text(
        'data.folder = "images"\nparticipation = { kind = "trace", trace = "t.csv" }\n'
    )
    monkeypatch.chdir(tmp_path)
    Path("t.csv").touch()
    experiment = load_experiment("sub/e.toml")
    assert (experiment.participation.trace, experiment.data.folder) == ("t.csv", "images")
    (folder / "t.csv").touch()
    (folder / "images").mkdir()
    experiment = load_experiment("sub/e.toml")
    assert experiment.participation.trace == str(Path("sub", "t.csv"))
    assert experiment.data.folder == str(Path("sub", "images"))
    other = load_experiment("sub/e.toml", {"participation.trace": "t.csv"})
    assert other.participation.trace == "t.csv"  # as of the command line: from here
