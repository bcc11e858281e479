"""A server loop of your own around any rule: NumPy alone, no simulator and no Flower.

    python examples/library/server_loop.py [RULE ...]      # default: all of them

Twenty clients each pull the model towards a point of their own; half of them are rarely there. The
best model is the mean of those points, weighted by the clients' sizes: what is printed is how far
from it the model stays, 1 being where it began.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsteer import RULES, Requests, Round, RoundRefused, ServerOptimiser, State, make_rule

CLIENTS, DIM, ROUNDS = 20, 50, 400
LOCAL_STEPS, LOCAL_RATE = 3, 0.1
DRAW = np.random.default_rng(0)
SIZES = DRAW.integers(20, 200, CLIENTS)
CHANCES = np.where(np.arange(CLIENTS) < CLIENTS // 2, 0.1, 0.6)
POINTS = DRAW.normal(size=(CLIENTS, 3)) @ DRAW.normal(size=(3, DIM)) + DRAW.normal(size=DIM)
BEST = SIZES @ POINTS / SIZES.sum()


def train(client: int, model: np.ndarray, asked: Requests) -> np.ndarray:
    """What a client does with what it was sent; its update, w_sent - w_returned."""
    own: Mapping[str, Any] = asked.each.get(client, {})
    sent = own.get("start", model)  # FedAWE: its own model
    weights = sent.copy()
    for _ in range(LOCAL_STEPS):
        gradient = weights - POINTS[client]
        if "proximal" in asked.shared:  # FedProx
            gradient = gradient + asked.shared["proximal"] * (weights - sent)
        if "control" in asked.shared:  # SCAFFOLD
            gradient = gradient + asked.shared["control"] - own.get("control", 0.0)
        weights = weights - LOCAL_RATE * gradient
    return np.asarray(sent - weights)


def run(name: str, rounds: int = ROUNDS, folder: Path | None = None) -> float:
    """How far from the best model, on the mean over the last quarter of the rounds; 1: no step."""
    options = {"local_rate": LOCAL_RATE} if name == "scaffold" else {}
    rule = make_rule(name, preset="practical", **options)
    optimiser = ServerOptimiser(rate=1.0 if rule.own_rate else 0.5)
    initial = model = np.zeros(DIM)
    state, moments = rule.init(DIM, sizes=SIZES), optimiser.init()
    draw, away = np.random.default_rng(1), []
    for number in range(1, rounds + 1):
        here = np.flatnonzero(draw.random(CLIENTS) < CHANCES).tolist()
        asked = rule.plan(state, number, here)  # whom to ask for what
        clients = asked.everyone
        sent = Round(
            number=number,
            clients=clients,
            updates=[train(client, model, asked) for client in clients],
            steps=[LOCAL_STEPS] * len(clients),  # SCAFFOLD
            model=model,  # FedAWE
            refresh=asked.refresh or None,
        )
        try:
            step = rule.step(state, sent)
        except RoundRefused as error:  # the state is as it was
            print(f"round {number} is left out: {error}")
            continue
        state = step.state  # the old one is used up
        if step.action == "move":
            model, moments = optimiser.step(moments, model, step.delta)
        elif step.action == "restart":  # a warm-up is over
            model, moments = initial, optimiser.init()
        # else "hold": a warm-up collects updates of one and the same model
        if folder is not None and number % 100 == 0:
            state, moments, model = saved_and_loaded(folder, state, moments, model)
        away.append(float(np.linalg.norm(model - BEST) / np.linalg.norm(BEST)))
    return float(np.mean(away[-rounds // 4 :]))


def saved_and_loaded(
    folder: Path, state: State, moments: State, model: np.ndarray
) -> tuple[State, State, np.ndarray]:
    """A checkpoint: everything in one file, bit for bit."""
    from fedsteer.records import load_server, save_server

    path = folder / "server.safetensors"
    save_server(path, state=state, moments=moments, model=model)
    return load_server(path)


if __name__ == "__main__":
    for rule_name in sys.argv[1:] or RULES:
        print(f"{rule_name:<16} {run(rule_name):.3f}")
