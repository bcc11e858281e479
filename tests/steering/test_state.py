"""States: packed and unpacked bit for bit, refused if they cannot be right."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from fedsteer import FedsteerError, Round, ServerOptimiser, State, StateError, make_rule
from fedsteer.records import load_server, save_server, write_checkpoint
from fedsteer.steering.component import Component
from fedsteer.steering.state import VERSION
from tests.rules.enrolled import (
    DIM,
    ENROLLED,
    LIBRARIES,
    SIZES,
    Enrolled,
    events,
    every_rule,
    packed,
    start,
)


def mid_story(entry: Enrolled, library: str = "numpy-float32") -> State:
    return start(entry.rule()).play(events(5, rounds=14), LIBRARIES[library]).state


@every_rule
@pytest.mark.parametrize("library", ["numpy-float16", "numpy-float64", "torch-bfloat16"])
def test_round_trip_is_exact(entry: Enrolled, library: str) -> None:
    state = mid_story(entry, library)
    arrays, meta = state.pack()
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    restored = State.unpack(arrays, json.loads(json.dumps(meta)))
    assert packed(restored) == packed(state)
    assert restored.rule == state.rule and restored.nbytes == state.nbytes
    # What went through the checkpoint is of the same library and type, not only equal in value.
    assert _kinds(restored.memory) == _kinds(state.memory)


def _kinds(component: Component) -> Any:
    found = {}
    for name, value in vars(component).items():
        if isinstance(value, Component):
            found[name] = _kinds(value)
        else:
            found[name] = (type(value), getattr(value, "dtype", None))
    return found


@every_rule
def test_round_trip_through_a_file(entry: Enrolled, tmp_path: Path) -> None:
    state = mid_story(entry, "torch-bfloat16")
    arrays, meta = state.pack()
    save_file(arrays, tmp_path / "state.safetensors", {"state": json.dumps(meta)})
    loaded = load_file(tmp_path / "state.safetensors")
    restored = State.unpack(loaded, json.loads(json.dumps(meta)), like=torch.zeros(1))
    assert packed(restored) == packed(state)


def test_packing_shares_nothing() -> None:
    state = mid_story(ENROLLED["steer"])
    before = packed(state)
    arrays, meta = state.pack()
    restored = State.unpack(arrays, meta)
    for array in arrays.values():
        array[...] = 7
    meta["state"]["fields"]["own"]["fields"]["columns"]["fields"]["owners"][0] = "changed"
    assert packed(state) == before == packed(restored)


@every_rule
@pytest.mark.parametrize("library", ["numpy-float32", "torch-float32"])
def test_a_copy_is_independent(entry: Enrolled, library: str) -> None:
    happenings = events(5, rounds=20)
    played = start(entry.rule()).play(happenings[:9], LIBRARIES[library])
    kept = played.copy()
    before = packed(kept.state)
    played.play(happenings[9:], LIBRARIES[library])
    assert packed(kept.state) == before
    kept.play(happenings[9:], LIBRARIES[library])
    assert packed(kept.state) == packed(played.state)


def test_a_consumed_handle_raises() -> None:
    state = make_rule("fedavg").init(3, SIZES)
    assert repr(state) == "<state of fedavg>"
    state.consume()
    assert repr(state) == "<used-up state of fedavg>"
    for use in (
        state.consume,
        state.copy,
        state.pack,
        lambda: state.memory,
        lambda: state.nbytes,
    ):
        with pytest.raises(StateError, match="used up by an earlier step"):
            use()


@pytest.mark.parametrize("version", [VERSION + 1, VERSION - 1, None, "1"])
def test_another_version_is_refused(version: Any) -> None:
    arrays, meta = mid_story(ENROLLED["fedvarp"]).pack()
    with pytest.raises(StateError, match=f"version {version}, this release reads {VERSION}"):
        State.unpack(arrays, {**meta, "version": version})


@pytest.mark.parametrize("meta", [None, [], "state", {}])
def test_what_is_no_checkpoint_is_refused(meta: Any) -> None:
    with pytest.raises(StateError):
        State.unpack({}, meta)


def damaged(change: Any) -> tuple[Any, Any]:
    arrays, meta = mid_story(ENROLLED["steer"]).pack()
    meta = copy.deepcopy(meta)
    change(meta["state"])
    return arrays, meta


def test_unknown_fields_are_refused() -> None:
    found = damaged(lambda tree: tree["fields"]["clients"]["fields"].update(mood=1))
    with pytest.raises(StateError, match=r"unknown fields \['mood'\] in Clients"):
        State.unpack(*found)


def test_unknown_parts_are_refused() -> None:
    found = damaged(lambda tree: tree["fields"]["own"].update(component="Crystal"))
    with pytest.raises(StateError, match="unknown part 'Crystal'"):
        State.unpack(*found)


def test_missing_arrays_are_refused() -> None:
    arrays, meta = mid_story(ENROLLED["steer"]).pack()
    del arrays["state.own.columns.gram"]
    with pytest.raises(StateError, match=r"lacks the array 'state\.own\.columns\.gram'"):
        State.unpack(arrays, meta)


def test_arrays_of_another_shape_are_refused() -> None:
    arrays, meta = mid_story(ENROLLED["fedvarp"]).pack()
    arrays["state.own.base"] = arrays["state.own.base"][:1]
    with pytest.raises(StateError, match=r"'state\.own\.base' of shape \[1\], not \[12\]"):
        State.unpack(arrays, meta)


def test_missing_fields_without_a_default_are_refused() -> None:
    found = damaged(lambda tree: tree["fields"]["clients"]["fields"].pop("dim"))
    with pytest.raises(StateError, match=r"lacks fields \['dim'\] of Clients"):
        State.unpack(*found)


def test_a_state_that_is_not_a_component_is_refused() -> None:
    arrays, meta = mid_story(ENROLLED["fedavg"]).pack()
    with pytest.raises(StateError, match="holds no state"):
        State.unpack(arrays, {**meta, "state": 3})


@dataclass
class Part(Component):
    """A component as an older release wrote it, and with what a newer one added."""

    number: float
    names: list[str] = field(default_factory=lambda: ["default"])
    table: Any = None


def test_a_missing_field_takes_its_default() -> None:
    arrays, meta = State("test", Part(2.5, ["a"], np.arange(3))).pack()
    del meta["state"]["fields"]["names"]
    memory = State.unpack(arrays, meta).memory
    assert isinstance(memory, Part)
    assert memory.number == 2.5 and memory.names == ["default"]
    assert memory.table.tolist() == [0, 1, 2]


def test_plain_values_survive() -> None:
    part = Part(np.float64(0.1) + 0.2, ["x", "y"], np.zeros((0, 3), np.float16))
    arrays, meta = State("test", part).pack()
    restored = State.unpack(arrays, json.loads(json.dumps(meta))).memory
    assert isinstance(restored, Part)
    assert restored.number == 0.1 + 0.2 and type(restored.number) is float
    assert restored.table.shape == (0, 3) and restored.table.dtype == np.float16


def test_ids_from_numpy_do_not_spoil_a_checkpoint() -> None:
    """Core sets are often drawn with NumPy; its integers are not JSON."""
    chosen = np.array([4, 1])
    for rule in (
        make_rule("fedsteer", core_set=list(chosen)),
        make_rule("fedsteer", core_set=chosen),
        make_rule(
            "fedsteer",
            select="frequent",
            core_size=2,
            frequencies={np.int64(4): 0.9, np.int64(1): 0.5, np.int64(0): 0.1},
        ),
    ):
        state = rule.init(3, {np.int64(client): 1.0 for client in range(5)})
        meta = json.loads(json.dumps(state.pack()[1]))
        owners = meta["state"]["fields"]["own"]["fields"]["columns"]["fields"]["owners"]
        assert owners == [4, 1]


def test_a_whole_server_in_one_file(tmp_path: Path) -> None:
    state, optimiser = mid_story(ENROLLED["mifa"], "torch-bfloat16"), ServerOptimiser("momentum")
    model = torch.ones(DIM)
    model, moments = optimiser.step(optimiser.init(), model, torch.full((DIM,), 0.5))
    save_server(tmp_path / "server.safetensors", state=state, moments=moments, model=model)
    back = load_server(tmp_path / "server.safetensors", like=model)
    assert packed(back.state) == packed(state) and packed(back.moments) == packed(moments)
    assert torch.equal(back.model, model) and back.model.dtype == model.dtype
    other = tmp_path / "other.safetensors"
    write_checkpoint(other, {}, {"run": 1})
    with pytest.raises(StateError, match="state version None, this release reads"):
        load_server(other)


def test_a_state_tells_about_its_clients() -> None:
    rule = make_rule("fedavg", probabilities="visits")
    state = rule.init(2, {"a": 1.0, "b": 3.0, 7: 2.0})
    round = Round(number=4, clients=["b", "new"], updates=np.ones((2, 2)), sizes=[5.0, 6.0])
    state = rule.step(state, round).state
    clients = state.clients
    assert clients.members == ["a", "b", 7, "new"] and len(clients) == 4
    assert clients.number == 4 and clients.rounds == 1
    assert clients.sizes == {7: 2.0, "a": 1.0, "b": 5.0, "new": 6.0}
    assert clients.last_seen == {7: 0, "a": 0, "b": 4, "new": 4}
    assert clients.probabilities == {7: 1 / 5, "a": 1 / 5, "b": 2 / 5, "new": 1.0}
    assert repr(clients) == "<4 clients after round 4>"
    left = rule.leave(state, ["b"])
    assert left.clients.members == ["a", 7, "new"]
    with pytest.raises(StateError):
        _ = state.clients
    assert make_rule("fedavg").init(1, [1.0]).clients.probabilities is None
    with pytest.raises(StateError, match="a state of optimiser sgd has no clients"):
        _ = ServerOptimiser().init().clients


def test_nbytes_counts_every_array() -> None:
    state = State("test", Part(1.0, [], np.zeros(10)))
    assert state.nbytes == 80
    assert State("test", Part(1.0, [], torch.zeros(10, dtype=torch.bfloat16))).nbytes == 20


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("number",), "3"),
        (("names",), ["x", 5]),
        (("table",), 0.5),
        (("table", "library"), "os"),
    ],
)
def test_values_of_another_type_are_refused(path: tuple[str, ...], value: object) -> None:
    arrays, meta = State("test", Part(0.5, ["x"], np.zeros((2, 3)))).pack()
    *outer, last = path
    place = meta["state"]["fields"]
    for key in outer:
        place = place[key]
    place[last] = value
    with pytest.raises(FedsteerError, match=r"wrong values in|unknown library of arrays 'os'"):
        State.unpack(arrays, meta)
