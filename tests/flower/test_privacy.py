"""Privacy on Flower: noise once, on arrival; counts that survive; budgets; wrappers refused."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import strategy as flowers
from flwr.serverapp.strategy import Strategy

from fedsteer import RULES, ConfigurationError
from fedsteer.errors import DataError
from fedsteer.flower import FedAvg, FedSteer, Privacy, make_strategy, private_updates
from fedsteer.flower import releases as counting
from fedsteer.privacy import epsilon
from fedsteer.records import Run
from fedsteer.report import write_page
from tests.flower.drifting_clients import FILES, INITIAL, strategy_of
from tests.flower.drifting_clients import world as rare_world
from tests.flower.fake import Answer, FakeGrid, arrays, drifting, failing, late, reply_with, values

PRIVATE = Privacy(clip=0.01, noise=50.0)
GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
WRAPPERS = [name for name in vars(flowers) if name.startswith("DifferentialPrivacy")]


@pytest.fixture(autouse=True)
def _accountant() -> None:
    pytest.importorskip("dp_accounting")


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that is zero."""
    monkeypatch.setattr(counting, "secret_normals", np.zeros)


def world(*clients: int) -> FakeGrid:
    return FakeGrid({100 + c: drifting(c) for c in clients or range(4)})


def budget_for(count: int, own: Privacy = PRIVATE) -> Privacy:
    """The same with a budget for so many releases."""
    terms = {"clip": own.clip, "noise": own.noise, "where": own.where}
    return Privacy(**terms, budget=epsilon(own, count) * (1 + 1e-9))  # type: ignore[arg-type]


def counts(folder: Path) -> dict[str, int]:
    return dict(json.loads((folder / "privacy.json").read_text())["releases"])


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_sees_noised_updates_only(rule: str, tmp_path: Path) -> None:
    strategy = strategy_of(rule, tmp_path, privacy=PRIVATE)
    before = strategy.rule
    seen: list[Any] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(before, name)

        def step(self, state: Any, round: Any) -> Any:
            seen.extend(round.updates)
            return before.step(state, round)

    strategy.rule = Watched()  # type: ignore[assignment]
    strategy.start(rare_world(), arrays(**INITIAL), num_rounds=4)
    # A raw update is below 1 everywhere; 50 clips of noise in six weights have a length near 1.2.
    lengths = [float(np.linalg.norm(update)) for update in seen]
    assert 0.6 < np.mean(lengths) < 1.9
    rows = Run(tmp_path).rounds
    costs = [row["epsilon"] for row in rows]
    assert costs == sorted(costs) and costs[-1] == pytest.approx(
        epsilon(PRIVATE, max(counts(tmp_path).values()))
    )
    clients = Run(tmp_path).rows("clients")
    assert all("epsilon" in row for row in clients if row["event"] == "fresh")
    assert "What it costs in privacy" in write_page(
        [Run(tmp_path)], tmp_path / "page.html"
    ).read_text(encoding="utf-8")


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("rule", sorted(RULES))
def test_nothing_that_is_kept_tells_two_clipped_updates_apart(rule: str, tmp_path: Path) -> None:
    """Neither records nor model nor checkpoint know how long an update was before it was cut."""

    def far(client: int, times: float) -> Answer:
        def answer(message: Message) -> Message:
            moved = {
                name: np.zeros_like(value) if "bn" in name else value + np.float32(times)
                for name, value in values(message.content["arrays"]).items()  # type: ignore[arg-type]
            }
            moved["bn.running_mean"] = np.full(3, times, np.float32)
            steps = {"num-steps": 2}
            return reply_with(message, arrays(**moved), 10, client, **steps)

        return answer

    found = []
    for times in (64.0, 512.0):
        grid = FakeGrid({100 + c: far(c, times * (1 + (c == 2))) for c in range(4)})
        folder = tmp_path / str(times)
        strategy = strategy_of(rule, folder, privacy=PRIVATE, fraction_evaluate=0.0)
        strategy.start(grid, arrays(**(INITIAL | {"w": np.zeros(6, np.float32)})), num_rounds=4)
        names = (*FILES, "model.safetensors", "privacy.json")
        state, _ = strategy.run.state.pack()
        found.append(
            [(folder / name).read_bytes() for name in names]
            + [state[name].tobytes() for name in sorted(state)]
        )
        np.testing.assert_array_equal(strategy.run.model.buffers.arrays["bn.running_mean"], 0.0)
    assert found[0] == found[1]


def test_the_noise_does_not_follow_from_the_seed() -> None:
    models = [
        values(FedAvg(privacy=PRIVATE, seed=3).start(world(), arrays(**INITIAL), 1).arrays)["w"]
        for _ in range(2)
    ]
    assert (models[0] != models[1]).all()


@pytest.mark.parametrize("moment", [1, 3])
def test_an_update_that_arrived_counts_even_if_its_round_is_lost(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = strategy_of("fedvarp", tmp_path, privacy=PRIVATE)
    real, calls = strategy.run.take_step, iter(range(1, 100))

    def killed(*given: Any) -> Any:
        if next(calls) == moment:
            raise KeyboardInterrupt  # the updates have been used, and nothing else was written
        return real(*given)

    monkeypatch.setattr(strategy.run, "take_step", killed)
    with pytest.raises(KeyboardInterrupt):
        strategy.start(world(), arrays(**INITIAL), num_rounds=4)
    assert set(counts(tmp_path).values()) == {moment}
    strategy_of("fedvarp", tmp_path, privacy=PRIVATE).start(world(), arrays(**INITIAL), 4)
    assert counts(tmp_path) == {f"client-{c}": 5 for c in range(4)}
    last = Run(tmp_path).rounds[-1]
    assert last["round"] == 4 and last["epsilon"] == pytest.approx(epsilon(PRIVATE, 5))


def test_counts_are_in_the_checkpoint_too(tmp_path: Path) -> None:
    strategy_of("fedvarp", tmp_path, privacy=PRIVATE).start(world(), arrays(**INITIAL), 3)
    (tmp_path / "privacy.json").unlink()
    strategy_of("fedvarp", tmp_path, privacy=PRIVATE).start(world(), arrays(**INITIAL), 4)
    assert set(counts(tmp_path).values()) == {4}
    for text in ("{", "[]", "[" * 99_999, '{"setup": {}, "releases": [["a", "b"]]}'):
        (tmp_path / "privacy.json").write_text(text)
        with pytest.raises(DataError, match=r"privacy\.json is not the counts of") as caught:
            strategy_of("fedvarp", tmp_path, privacy=PRIVATE).start(world(), arrays(**INITIAL), 5)
        assert "\n" not in str(caught.value)


def test_clients_that_fail_have_released_nothing(tmp_path: Path) -> None:
    def broken(message: Message) -> Message:
        return reply_with(message, arrays(**INITIAL | {"w": np.full((2, 3), np.inf)}), 10, 3)

    grid = FakeGrid({100: drifting(0), 101: failing, 102: late, 103: broken})
    FedAvg(privacy=PRIVATE, folder=tmp_path).start(grid, arrays(**INITIAL), 2)
    # That an update was not finite, and nothing more, is known of it.
    assert counts(tmp_path) == {"client-0": 2, "client-3": 2}
    events = {row["client"]: row["event"] for row in Run(tmp_path).rows("clients")}
    assert events["client-0"] == "fresh" and events["client-3"] == "dropped"


def test_a_client_without_budget_is_not_asked_and_the_run_ends_with_the_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = world(0, 1)
    grid.offline = {101}
    grid.before = lambda sends: grid.offline.clear() if sends == 2 else None
    private = budget_for(3)
    strategy = FedSteer(privacy=private, folder=tmp_path, fraction_evaluate=0.0)
    with caplog.at_level(logging.INFO):
        result = strategy.start(grid, arrays(**INITIAL), 20)
    assert grid.asked == [[100], [100], [100], [101], [101], [101]]
    assert "all clients have spent their privacy budget" in caplog.text
    assert strategy.run.number == 6 and result.arrays is not None
    assert Run(tmp_path).finished and Run(tmp_path).rounds[-1]["epsilon"] <= private.budget
    assert counts(tmp_path) == {"client-0": 3, "client-1": 3}
    # Nobody gets a new budget by leaving, and a larger one lets the run go on.
    again = FedSteer(privacy=private, folder=tmp_path, fraction_evaluate=0.0)
    again.leave(["client-1"])
    grid.asked.clear()
    again.start(grid, arrays(**INITIAL), 20)
    assert [node for nodes in grid.asked for node in nodes if node == 101] == [101]  # unknown now
    assert counts(tmp_path) == {"client-0": 3, "client-1": 3}
    more = FedSteer(privacy=budget_for(4), folder=tmp_path, fraction_evaluate=0.0)
    more.start(grid, arrays(**INITIAL), 20)
    assert counts(tmp_path) == {"client-0": 4, "client-1": 4}


def test_flowers_own_loop_ends_with_the_last_budget_too(tmp_path: Path) -> None:
    strategy = FedSteer(privacy=budget_for(2), folder=tmp_path)
    with pytest.raises(ConfigurationError, match="all clients have spent their privacy budget"):
        Strategy.start(strategy, world(), arrays(**INITIAL), num_rounds=5)
    assert strategy.run.store.records is None
    assert set(counts(tmp_path).values()) == {2}


def test_the_round_waits_for_a_client_with_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, waited = world(0, 1), []

    def sleep(seconds: float) -> None:
        waited.append(len(grid.asked))
        grid.offline.clear()

    monkeypatch.setattr("fedsteer.flower.asking.time.sleep", sleep)

    grid.before = lambda sends: grid.offline.update({101} if sends == 0 else ())
    strategy = FedSteer(privacy=budget_for(2), fraction_evaluate=0.0, population={0: 10, 1: 11})
    strategy.start(grid, arrays(**INITIAL), 3, timeout=60)
    assert grid.asked == [[100, 101], [100], [101]] and waited == [2]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (None, PRIVATE),
        (PRIVATE, None),
        (PRIVATE, Privacy(clip=0.01, noise=60.0)),
        (PRIVATE, Privacy(clip=0.01, noise=50.0, where="client")),
    ],
)
def test_the_terms_of_a_run_cannot_change(first: Any, second: Any, tmp_path: Path) -> None:
    FedAvg(privacy=first, folder=tmp_path).start(world(), arrays(**INITIAL), 2)
    with pytest.raises(ConfigurationError, match="holds a checkpoint with privacy"):
        FedAvg(privacy=second, folder=tmp_path).start(world(), arrays(**INITIAL), 3)


def test_counts_of_other_terms_are_refused_without_a_checkpoint_too(tmp_path: Path) -> None:
    FedAvg(privacy=PRIVATE, folder=tmp_path).start(world(), arrays(**INITIAL), 2)
    left = [path for path in tmp_path.iterdir() if path.name != "privacy.json"]
    for path in left:
        path.unlink()
    other = Privacy(clip=0.02, noise=50.0)
    with pytest.raises(ConfigurationError, match="counts releases with other settings"):
        FedAvg(privacy=other, folder=tmp_path).start(world(), arrays(**INITIAL), 3)
    FedAvg(privacy=other, folder=tmp_path, resume=False).start(world(), arrays(**INITIAL), 3)
    assert set(counts(tmp_path).values()) == {3}


def private_client(client: int, privacy: Privacy, inner: Answer | None = None) -> Answer:
    mod, context = private_updates(privacy), Context(1, 5, {}, RecordDict(), {})
    answer: Callable[..., Any] = inner or drifting(client)
    return lambda message: mod(message, context, lambda message, context: answer(message))


AT_CLIENTS = Privacy(clip=0.01, noise=50.0, where="client")


def test_clients_that_add_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid({100 + c: private_client(c, AT_CLIENTS) for c in range(3)})
    grid.answers[103] = late
    strategy = FedAvg(privacy=AT_CLIENTS, folder=tmp_path)
    initial = INITIAL | {"w": np.zeros(4000, np.float32)}
    strategy.start(grid, arrays(**initial), 3)
    # What was asked for counts: it may have left its client. A node is a client once it answers.
    assert counts(tmp_path) == {"client-0": 3, "client-1": 3, "client-2": 3, "node-103": 3}
    norms = [row["norm"] for row in Run(tmp_path).rows("clients") if row["event"] == "fresh"]
    assert norms == pytest.approx([0.5 * math.sqrt(4000)] * 9, rel=0.1)
    np.testing.assert_array_equal(strategy.run.model.buffers.arrays["bn.running_mean"], 0.0)


def test_what_clients_noise_counts_before_they_are_asked(tmp_path: Path) -> None:
    grid = FakeGrid({100: private_client(0, AT_CLIENTS)})

    def kill(sends: int) -> None:
        assert set(counts(tmp_path).values()) == {sends + 1}
        if sends == 1:
            raise KeyboardInterrupt

    grid.before = kill
    terms: dict[str, Any] = {"privacy": AT_CLIENTS, "folder": tmp_path, "fraction_evaluate": 0.0}
    with pytest.raises(KeyboardInterrupt):
        FedAvg(**terms).start(grid, arrays(**INITIAL), 3)
    grid.before = None
    FedAvg(**terms).start(grid, arrays(**INITIAL), 3)
    assert counts(tmp_path) == {"client-0": 4}


@pytest.mark.parametrize("server", [None, PRIVATE, Privacy(clip=0.01, noise=49.0, where="client")])
def test_a_client_sends_nothing_if_the_server_counts_otherwise(server: Privacy | None) -> None:
    grid = FakeGrid({100: private_client(0, AT_CLIENTS)})
    with pytest.raises(ConfigurationError, match="nothing is sent"):
        FedAvg(privacy=server).start(grid, arrays(**INITIAL), 1)


def test_a_client_sends_back_arrays_that_are_not_steered_as_they_came() -> None:
    sent = arrays(**(INITIAL | {"head[0]": np.zeros(5, np.float32)}))
    terms = ConfigRecord(
        {"privacy-clip": 0.01, "privacy-noise": 50.0, "privacy-arrays": ["head[0]"]}
    )
    message = Message(RecordDict({"arrays": sent, "config": terms}), 5, "train")
    answer = drifting(3)
    reply = private_client(3, AT_CLIENTS, answer)(message)
    assert reply is not None
    found, raw = (values(one.content["arrays"]) for one in (reply, answer(message)))  # type: ignore[union-attr,arg-type]
    assert all((raw[name] != INITIAL[name]).any() for name in INITIAL)
    for name in INITIAL:
        np.testing.assert_array_equal(found[name], INITIAL[name])
    assert (found["head[0]"] != raw["head[0]"]).all()
    evaluation = Message(RecordDict({"arrays": sent}), 5, "evaluate")
    reply = private_client(3, AT_CLIENTS)(evaluation)
    assert reply is not None and not reply.has_error()


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("rule", ["fedsteer", "fedavg"])
def test_flowers_wrappers_are_refused(wrapper: str, rule: str, tmp_path: Path) -> None:
    inner = make_strategy(rule, folder=tmp_path)
    wrapped = getattr(flowers, wrapper)(inner, 0.1, num_sampled_clients=4, **(
        {"clipping_norm": 1.0} if "Fixed" in wrapper else {}
    ))  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"privacy=Privacy\(clip") as caught:
        wrapped.start(world(), arrays(**INITIAL), num_rounds=1, train_config=ConfigRecord())
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())
    assert len(WRAPPERS) == 4


def test_privacy_in_the_run_config() -> None:
    def found(text: str) -> Privacy | None:
        return FedAvg.from_run_config({"fedsteer-privacy": text}).options.privacy

    assert found("clip=0.5, noise=8, budget=20, where=client") == Privacy(
        clip=0.5, noise=8.0, budget=20.0, where="client"
    )
    assert found("none") is None
    for text, words in (
        ("clip=0.5, nois=8", "did you mean 'noise'"),
        ("0.5", "must read like"),
        ("noise=8", "privacy needs privacy.clip"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            found(text)
    with pytest.raises(ConfigurationError, match=r"privacy must be a Privacy"):
        FedAvg(privacy={"clip": 1.0})


def test_the_snippets_of_the_guide_run_and_its_noise_is_right(tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    names: dict[str, Any] = {"update": np.ones(5)}
    for snippet in snippets:
        exec(snippet.replace("/var/lib/fl/run-1", str(tmp_path)), names)
    assert len(snippets) == 3 and np.abs(names["update"] - 1).max() > 1e-3
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", GUIDE, flags=re.M)
    for count, *noises in rows:
        for noise, cost in zip(noises, (1, 3, 8), strict=True):
            found = epsilon(Privacy(clip=1.0, noise=float(noise)), int(count))
            assert found == pytest.approx(cost, rel=0.05)
    assert len(rows) == 3
