"""The same replies give the same arrays with and without Flower."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedsteer import RULES, Round, make_rule
from fedsteer.flower import STRATEGIES, make_strategy
from fedsteer.steering.optimiser import ServerOptimiser
from tests.flower.fake import Answer, FakeGrid, arrays, drifting, late, reply_with, values

CLIENTS, ROUNDS, DIM = 6, 9, 8
OPTIONS: dict[str, dict[str, Any]] = {
    "fedsteer": {"core_size": 3, "local_rate": 0.2},
    "cluster_fedvarp": {"cluster_count": 2},
    "fedprox": {"proximal": 0.3},
    "scaffold": {"local_rate": 0.2},
}
INITIAL = {"a": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}


def takes_part(client: int, number: int) -> bool:
    """Skewed: client 0 always takes part, client 5 rarely."""
    return (number * 7 + client * 3) % (client + 1) == 0


def pull(client: int, start: np.ndarray, correction: np.ndarray, mu: float) -> np.ndarray:
    """Three gradient steps towards the client's own target."""
    target, weights = np.cos(np.arange(DIM) + client), start.astype(np.float64)
    for _ in range(3):
        weights = weights - 0.2 * (weights - target + correction + mu * (weights - start))
    return weights.astype(np.float32)


def flat(named: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([named["a"].reshape(-1), named["b"]])


def apart(vector: np.ndarray) -> dict[str, np.ndarray]:
    return {"a": vector[:6].reshape(2, 3), "b": vector[6:]}


def flower_client(client: int) -> Answer:
    def answer(message: Message) -> Message | None:
        config = message.content["config"]
        if not takes_part(client, int(config["server-round"])):
            return late(message)
        start = flat(values(message.content["arrays"]))  # type: ignore[arg-type]
        extra = message.content.array_records.get("correction")
        correction = np.zeros(DIM) if extra is None else flat(values(extra))
        weights = pull(client, start, correction, float(config.get("proximal-mu", 0.0)))
        named = {"client": client, "num-steps": 3, "train_loss": 1.0}
        return reply_with(message, arrays(**apart(weights)), 10 + client, **named)

    return answer


def straight_through(
    rule_name: str, preset: str, options: dict[str, Any], sizes: dict[str, float] | None
) -> np.ndarray:
    """The same federation without Flower: the rule and the optimiser alone."""
    rule = make_rule(rule_name, preset=preset, **options)
    model = flat(INITIAL)
    state = rule.init(DIM, sizes, like=model)
    optimiser = ServerOptimiser() if rule.own_rate else ServerOptimiser("momentum", 0.7)
    moments = optimiser.init()
    for number in range(1, ROUNDS + 1):
        everyone = [f"client-{c}" for c in range(CLIENTS)]
        asked = rule.plan(state, number, everyone, everyone)
        present = [
            c for c in range(CLIENTS) if takes_part(c, number) and everyone[c] in asked.everyone
        ]
        updates, names = [], [everyone[c] for c in present]
        for c, name in zip(present, names, strict=True):
            own = asked.each.get(name, {})
            start = np.asarray(own.get("start", model), np.float32)
            correction = np.asarray(own.get("correction", np.zeros(DIM)), np.float32)
            if "control" in asked.shared:
                whole = asked.shared["control"] - own.get("control", 0.0)
                correction = np.asarray(whole, np.float32)
            mu = float(asked.shared.get("proximal", 0.0))
            updates.append(start - pull(c, start, correction.astype(np.float64), mu))
        step = rule.step(
            state,
            Round(
                number,
                names,
                updates,
                sizes=[10.0 + c for c in present] or None,
                steps=[3.0] * len(present) or None,
                model=model,
            ),
        )
        state = step.state
        if step.action == "move":
            model, moments = optimiser.step(moments, model, step.delta)
        elif step.action == "restart":
            model, moments = flat(INITIAL), optimiser.init()
    return model


@pytest.mark.parametrize("preset", ["practical", "paper"])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_same_replies_give_the_arrays_of_the_rule(rule: str, preset: str) -> None:
    options, sizes = dict(OPTIONS.get(rule, {})), None
    if preset == "paper" and rule in ("fedsteer", "cluster_fedvarp"):  # they begin with a warm-up
        options |= {"cycles": 1}
        sizes = {c: 10.0 + c for c in range(CLIENTS)}
    grid = FakeGrid({1000 + c: flower_client(c) for c in range(CLIENTS)})
    strategy = make_strategy(
        rule,
        preset=preset,
        server_optimiser="momentum",
        server_rate=0.7,
        population=sizes,
        **options,
    )
    # The nodes are known, as they would be from an earlier run.
    strategy.run.identities.names = {1000 + c: f"client-{c}" for c in range(CLIENTS)}
    result = strategy.start(grid, arrays(**INITIAL), num_rounds=ROUNDS)

    made = {"probabilities": "shrunk", "bad_clients": "drop"} | options
    known = None if sizes is None else {f"client-{c}": size for c, size in sizes.items()}
    expected = apart(straight_through(rule, preset, made, known))
    found = values(result.arrays)
    assert list(found) == ["a", "b"]
    for name, array in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array)
    assert not np.array_equal(found["a"], INITIAL["a"])


def test_every_rule_has_a_strategy() -> None:
    assert set(STRATEGIES) == set(RULES)


def test_plain_averaging_is_the_mean_of_the_replies() -> None:
    grid = FakeGrid({c: drifting(c) for c in (1, 2, 3)})
    initial = arrays(w=np.zeros(4, np.float32))
    strategy = make_strategy("fedavg", preset="paper", average="participants")
    result = strategy.start(grid, initial, num_rounds=1)
    targets = [0.1 * np.cos(np.arange(4) + c) for c in (1, 2, 3)]
    expected = np.average(targets, axis=0, weights=[11, 12, 13])
    np.testing.assert_allclose(values(result.arrays)["w"], expected, rtol=1e-6)
