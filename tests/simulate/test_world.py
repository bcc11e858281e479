"""What no rule can change is a function of the seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.options import option
from fedsteer.participation import PROCESSES, ParticipationOptions
from fedsteer.participation.bernoulli import Bernoulli
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.experiment_files import load_experiment, settings_toml
from fedsteer.simulate.world import World, build_world
from tests.simulate.small import small

TRACE = "client,start,end\n" + "".join(
    f"{client},{start},{start + 1 + client % 3}\n" for client in range(12) for start in (0, 4, 8)
)


def facts(world: World) -> dict[str, Any]:
    return {
        "points": [points.tolist() for points in world.partition.indices],
        "present": [world.participation.present(t).tolist() for t in range(1, 9)],
        "reported": None if world.reported is None else world.reported.tolist(),
        "initial": world.network.initial(world.seed).tolist(),
    }


@pytest.mark.parametrize("reported", ["known", "estimated"])
def test_same_seed_same_world(reported: str) -> None:
    experiment = small({"participation.reported": reported})
    one, other = build_world(experiment, 3), build_world(experiment, 3)
    assert facts(one) == facts(other)
    another = facts(build_world(experiment, 4))
    assert all(another[name] != facts(one)[name] for name in ("points", "present", "initial"))


@pytest.mark.parametrize(
    ("kind", "points", "replace"),
    [
        ("label-groups", 10, False),
        ("label-groups", 10, True),
        ("dirichlet", "none", False),
        ("dirichlet", 10, True),
        ("shards", 10, False),
        ("shards", "none", False),
        ("iid", 10, False),
        ("iid", 10, True),
    ],
)
def test_partitions(kind: str, points: Any, replace: bool) -> None:
    settings = {"kind": kind, "points": points, "replace": replace}
    world = build_world(small({f"partition.{key}": v for key, v in settings.items()}), 0)
    assert world.partition.clients == 12 and len(world.sizes) == 12
    np.testing.assert_array_equal(world.partition.holds.sum(axis=1), world.sizes)
    points = np.concatenate(world.partition.indices)
    assert replace or len(np.unique(points)) == len(points)
    assert bool(world.partition.label_groups) == (kind == "label-groups")


def test_labels_swap_hands_in_the_middle() -> None:
    plain, swapped = build_world(small(), 0), build_world(small({"partition.swap_after": 3}), 0)
    assert facts(plain) == facts(swapped)
    first, later = swapped.partition.at(3), swapped.partition.at(4)
    assert swapped.partition.at(0) is first is swapped.partition and later is not first
    assert later.label_groups == {"common": [2, 3], "rare": [0, 1]}
    assert later.sizes.tolist() == first.sizes.tolist()
    assert (later.holds[later.groups == "common", :2] == 0).all()
    assert plain.partition.at(4) is plain.partition
    with pytest.raises(ConfigurationError, match="swap_after = 6 comes after the last round"):
        small({"partition.swap_after": 6})


def test_held_out_points_are_those_of_no_phase() -> None:
    settings = {"data.options": {"points": 600, "side": 4}}
    plain = build_world(small(settings), 0)
    swapped = build_world(small(settings | {"partition.swap_after": 3}), 0)
    assert plain.held_out is not None and swapped.held_out is not None
    phases = swapped.partition.at(1), swapped.partition.at(4)
    held = {index for part in phases for own in part.indices for index in own}
    images = swapped.dataset.train()[0]
    kept = {images[index].tobytes() for index in range(len(images)) if index not in held}
    assert len(swapped.held_out[1]) < len(plain.held_out[1])
    assert {image.numpy().tobytes() for image in swapped.held_out[0]} <= kept


def test_all_points_if_none_is_said() -> None:
    settings = {"partition.kind": "iid", "partition.points": "none"}
    assert build_world(small(settings), 0).sizes.sum() == 200


def participations(folder: Path) -> dict[str, dict[str, Any]]:
    """Settings for kinds that need some, or are told more by others than their defaults."""
    (folder / "trace.csv").write_text(TRACE)
    return {
        "bernoulli": {"participation.probabilities": [0.1 + 0.05 * i for i in range(12)]},
        "markov": {"participation.mean_on": 5},
        "diurnal": {"participation.weak": 0.2, "participation.powerful": 0.4},
        "trace": {
            "participation.trace": str(folder / "trace.csv"),
            "participation.round_seconds": 1,
        },
    }


@pytest.mark.parametrize("kind", PROCESSES)
def test_participations(kind: str, tmp_path: Path) -> None:
    settings = {"participation.kind": kind} | participations(tmp_path).get(kind, {})
    world = build_world(small(settings), 0)
    assert world.participation.clients == 12
    assert world.reported is not None and world.reported.shape == (12,)
    # Later rounds first: presence is a function of the round alone.
    late = [world.participation.present(t).tolist() for t in range(20, 0, -1)]
    again = build_world(small(settings), 0).participation
    assert [again.present(t).tolist() for t in range(1, 21)] == late[::-1]
    if kind == "everybody":
        assert all(clients == list(range(12)) for clients in late)
    if kind == "bernoulli":
        np.testing.assert_allclose(world.reported, [0.1 + 0.05 * i for i in range(12)])


def test_a_trace_of_more_devices_is_sampled(tmp_path: Path) -> None:
    settings = {"participation.kind": "trace"} | participations(tmp_path)["trace"]
    settings["run.watch"] = [1]
    world = build_world(small(settings | {"partition.clients": 4}), 0)
    assert world.participation.clients == 4
    with pytest.raises(ConfigurationError, match="13 clients cannot be drawn"):
        build_world(small(settings | {"partition.clients": 13}), 0)


def test_full_participation_keeps_everything_else() -> None:
    experiment = small({"participation.reported": "estimated"})
    world, full = build_world(experiment, 0), build_world(experiment, 0, everybody=True)
    assert facts(world)["points"] == facts(full)["points"]
    assert facts(world)["initial"] == facts(full)["initial"]
    assert full.participation.present(1).tolist() == list(range(12))
    assert full.reported is not None and full.reported.tolist() == [1.0] * 12


def test_what_rules_are_told_of_the_probabilities() -> None:
    known = build_world(small(), 0)
    assert known.reported is not None
    assert sorted(set(known.reported.tolist())) == [0.3, 0.7]
    assert build_world(small({"participation.reported": "estimated"}), 0).reported is None
    factor = build_world(
        small({"participation.reported": "wrong", "participation.wrong_factor": 0.5}), 0
    )
    assert factor.reported is not None
    np.testing.assert_allclose(factor.reported, known.reported / 2)
    noisy = build_world(
        small({"participation.reported": "wrong", "participation.wrong_noise": 0.5}), 0
    )
    assert noisy.reported is not None
    assert len(set((noisy.reported / known.reported).round(9).tolist())) > 6
    assert facts(noisy)["present"] == facts(known)["present"], "the truth stays"


def test_the_test_set_is_cut_from_its_end() -> None:
    whole, part = build_world(small(), 0), build_world(small({"run.test_share": 0.25}), 0)
    assert len(whole.test_labels) == 200 and len(part.test_labels) == 50
    assert torch.equal(whole.test_images[150:], part.test_images)
    assert len(build_world(small({"run.test_share": 1e-9}), 0).test_labels) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data.options": {"nois": 1}}, "did you mean 'noise'"),
        ({"data.options": {"noise": "a"}}, "data.options.noise must be a number"),
        ({"data.options": {"points": 10.5}}, "data.options.points must be a whole number"),
        ({"data.options": {"points": [1]}}, "data.options.points must be a whole number"),
        (
            {"data.name": "digits", "data.options.noise": 1},
            "data.options are for the made-up data set only",
        ),
        ({"partition.kind": "label-group"}, "did you mean 'label-groups'"),
        ({"partition.points": 1000}, "lower points"),
        ({"participation.kind": "markow"}, "did you mean 'markov'"),
        ({"participation.kind": "trace"}, "participation.trace must name a file"),
        ({"participation.probabilities": [0.5]}, "has 1 entries for 12 clients"),
        ({"participation.weak": 0.0}, "participation.weak must be above 0 and at most 1"),
        (
            {"participation.reported": "guessed"},
            "unknown participation.reported 'guessed'; known: estimated, known",
        ),
        (
            {"participation.wrong_factor": 2.0},
            "wrong_noise need reported = wrong, here it is known",
        ),
        ({"run.device": "cuda:99"}, "there is no CUDA here|CUDA"),
        ({"run.engine": "fast"}, "unknown run.engine 'fast'"),
        ({"model.name": "mpl"}, "did you mean 'mlp'"),
    ],
)
def test_mistakes(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        build_world(small(settings), 0)


@dataclass(frozen=True)
class InTurnsOptions(ParticipationOptions):
    """Every client in its turn."""

    kind = "in-turns"
    step: int = option(3, "one of that many clients", low=1)

    def process(self, clients: int, seed: int) -> Bernoulli:
        """As many as come in their turn."""
        return Bernoulli(np.ones(-(-clients // self.step)), seed)


def test_a_process_enters_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROCESSES, "in-turns", InTurnsOptions)  # type: ignore[arg-type]
    experiment = small({"participation.kind": "in-turns", "participation.step": 4})
    assert build_world(experiment, 0).participation.clients == 3
    assert "step = 4 " in settings_toml(experiment)
    assert "# step = 3 " in settings_toml(small())
    assert experiment.as_dict()["participation"]["kind"] == "in-turns"
    with pytest.raises(ConfigurationError, match=r"step is for participation.kind = in-turns"):
        small({"participation.step": 4})
    with pytest.raises(ConfigurationError, match=r"participation.step must be at least 1, not 0"):
        experiment.changed({"participation.step": 0})


def test_a_data_set_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'digits'"):
        build_world(Experiment().changed({"data.name": "digts"}), 0)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    settings = {"participation.kind": "trace", "participation.trace": str(tmp_path / "no.csv")}
    with pytest.raises(DataError, match=r"no\.csv cannot be read"):
        build_world(small(settings), 0)


def test_an_empty_experiment_file_runs(tmp_path: Path) -> None:
    """Its defaults fit each other: as many points a client as both label groups have."""
    path = tmp_path / "empty.toml"
    path.write_text("")
    world = build_world(load_experiment(str(path)), 0)
    assert sorted(set(world.sizes.tolist())) == [4, 40]  # as in the shipped experiment
