"""Made records: a small, plausible comparison, written as the simulator writes it.

The numbers are drawn, not trained, but their shapes are right: half of the clients are rarely
there, the rare labels lag for rules that forget, estimates age for rules that keep old updates and
stay good for those that keep coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fedsteer.records import RecordWriter

# label -> (final accuracy, lag of the rare labels, how fast estimates age, memory in updates)
RULES: dict[str, tuple[float, float, float, float]] = {
    "fedsteer (practical)": (0.88, 0.03, 0.06, 12),
    "fedsteer (paper)": (0.87, 0.04, 0.05, 12),
    "fedavg": (0.76, 0.25, 0.0, 0),
    "fedprox": (0.77, 0.23, 0.0, 0),
    "fedvarp": (0.82, 0.12, 0.5, 100),
    "cluster_fedvarp": (0.81, 0.14, 0.4, 10),
    "fedstale": (0.825, 0.11, 0.45, 100),
    "mifa": (0.79, 0.16, 0.7, 100),
    "scaffold": (0.78, 0.2, 0.6, 101),
    "fedawe": (0.75, 0.22, 0.0, 0),
    "full participation": (0.9, 0.0, 0.1, 0),
}
DIM = 4810
WARM_UP = 5
CORE = 8


def make_comparison(
    folder: Path,
    labels: Sequence[str] = tuple(RULES),
    seeds: int = 3,
    rounds: int = 40,
    clients: int = 20,
    every: int = 2,
    name: str = "digits",
) -> Path:
    """`folder/<label>/seed-<s>` for all labels and seeds; returns `folder`."""
    for place, label in enumerate(labels):
        for seed in range(seeds):
            make_run(
                folder / f"rule-{place}" / f"seed-{seed}",
                label=label,
                seed=seed,
                rounds=rounds,
                clients=clients,
                every=every,
                name=name,
            )
    return folder


def make_run(
    folder: Path,
    label: str = "fedavg",
    seed: int = 0,
    rounds: int = 40,
    clients: int = 20,
    every: int = 2,
    name: str = "digits",
    reason: str = "sent a non-finite update",
    finish: bool = True,
) -> Path:
    """One run's records."""
    final, lag, ageing, memory = RULES.get(label, (0.8, 0.1, 0.2, 10.0))
    rule = label.split(" ")[0]
    steers, warm_up = rule == "fedsteer", WARM_UP if rule == "fedsteer" else 0
    draws, own = np.random.default_rng(seed), np.random.default_rng([seed, len(label)])
    final += 0.01 * draws.standard_normal() + 0.004 * own.standard_normal()
    common = np.arange(clients) < clients // 2
    probabilities = np.where(common, 0.5, 0.06) if rule != "full" else np.ones(clients)
    holds = _holds(draws, common)
    last_visit = np.zeros(clients, int)
    totals = dict.fromkeys(("bytes_up", "bytes_down", "uploads", "warm_up_uploads"), 0)
    watched = np.unique(np.linspace(0, clients - 1, 6).astype(int))
    coordinates = np.zeros((rounds + warm_up, len(watched), CORE), np.float32)
    point = own.normal(size=(len(watched), CORE))
    evaluation: dict[str, Any] = {}
    with closing(RecordWriter(folder)) as writer:
        writer.manifest(
            manifest(label, rule, seed, rounds, name, holds, common, probabilities.tolist())
        )
        for moment in range(1, rounds + warm_up + 1):
            warming = moment <= warm_up
            present = np.flatnonzero(draws.random(clients) < probabilities)
            training = 0 if warming else moment - warm_up
            bad = steers and moment in (11, 12) and len(present) > 1
            for client in present.tolist():
                staleness = moment - last_visit[client] if last_visit[client] else None
                last_visit[client] = moment
                error = 1.0 if not ageing or staleness is None else ageing * staleness**0.6
                if steers and staleness is not None:
                    error = 0.15 + ageing * np.log2(1 + staleness)
                row = {
                    "round": moment,
                    "client": client,
                    "event": "collect" if warming else "fresh",
                    "weight": 1 / (clients * probabilities[client]),
                    "probability": probabilities[client],
                    "norm": own.gamma(9, 0.1),
                    "relative_error": None if warming else error * own.gamma(20, 1 / 20),
                    "cosine": 0.5,
                    "staleness": staleness,
                    "loss": 2.3 * np.exp(-training / 40),
                    "steps": 5,
                }
                if bad and client == present[0]:
                    row = {key: row[key] for key in ("round", "client")}
                    row |= {"event": "dropped", "reason": reason}
                writer.append("clients", row)
            up, down = 4 * DIM * len(present), 4 * DIM * (len(present) + (0 if warming else 1))
            totals["bytes_up"] += up
            totals["bytes_down"] += down
            totals["uploads"] += len(present)
            totals["warm_up_uploads"] += len(present) if warming else 0
            acted = steers and own.random() < 0.05
            summary: dict[str, Any] = {
                "round": moment,
                "phase": "warm-up" if warming else "train",
                "training_round": training,
                "active": len(present),
                "fresh": 0 if warming else len(present),
                "refreshed": 0,
                "collected": len(present) if warming else 0,
                "dropped": int(bad),
                "bytes_up": up,
                "bytes_down": down,
                "delta_norm": 1.0 / moment,
                "bound_factor": own.uniform(0.4, 0.95) if acted else 1.0,
                "variance": (0.002 + 0.1 * (1 - final))
                * own.gamma(4, 0.25)
                / (1 + 0.05 * training),
                "train_loss": 2.3 * np.exp(-training / 40),
                "server_bytes": int(4 * DIM * (memory + 1)),
            }
            if steers:
                summary |= {"condition": own.gamma(4, 5.0), "columns": CORE, "weight_sum": 1.0}
                pace = {"step_factor": training / rounds, "alignment": np.cos(training)}
                summary |= {} if warming else pace
            if not warming and (training % every == 0 or training == rounds):
                evaluation = evaluate(own, final, lag, training, rounds)
                summary |= evaluation
            writer.append("rounds", summary)
            writer.append("timing", {"round": moment, "seconds": 0.02, "train": 0.015})
            point = np.where(
                own.random((len(watched), 1)) < 0.1, own.normal(size=point.shape), point
            )
            coordinates[moment - 1] = point + 0.05 * own.normal(size=point.shape)
        if finish:
            writer.finish(
                {"finished": True, **evaluation, **totals}
                | {"rounds": rounds, "warm_up_rounds": warm_up, "seconds": 3.5}
                | {"server_bytes": int(4 * DIM * (memory + 1))}
            )
    if steers:
        trained = coordinates[warm_up:]
        save_file({"coordinates": trained, "watched": watched}, folder / "arrays.safetensors")
    return folder


def make_result(
    folder: Path, label: str, seed: int | None, result: Mapping[str, Any] | None
) -> Path:
    """The least a run can have: a manifest, and a result if one is given."""
    with closing(RecordWriter(folder)) as writer:
        kept: dict[str, Any] = {"format": 1, "rule": {"label": label, "name": label.split(" ")[0]}}
        writer.manifest(kept if seed is None else kept | {"seed": seed})
        if result is not None:
            writer.finish({"finished": True, **result})
    return folder


def manifest(
    label: str,
    rule: str,
    seed: int,
    rounds: int,
    name: str,
    holds: np.ndarray,
    common: np.ndarray,
    probabilities: list[float],
) -> dict[str, Any]:
    """What was run."""
    return {
        "format": 1,
        "version": "0.1.0",
        "rule": {
            "label": label,
            "name": "fedavg" if rule == "full" else rule,
            "preset": "paper",
            "options": {},
        },
        "seed": seed,
        "experiment": {"name": name, "title": f"Skewed participation, {name}",
                       "run": {"rounds": rounds}},
        "environment": {"python": "3.11"},
        "engine": {"name": "batched", "device": "cpu", "threads": 2},
        "data": {
            "name": "digits",
            "classes": 10,
            "label_groups": {"common": [0, 1, 2, 3, 4], "rare": [5, 6, 7, 8, 9]},
        },
        "clients": {
            "sizes": holds.sum(axis=1).tolist(),
            "data_group": ["common" if one else "rare" for one in common],
            "probabilities": probabilities,
            "holds": holds.tolist(),
        },
        "dim": DIM,
        "created": "2026-01-01T00:00:00Z",
    }  # fmt: skip


def evaluate(
    rng: np.random.Generator, final: float, lag: float, training: int, rounds: int
) -> dict[str, Any]:
    """The keys of an evaluated round."""
    progress = 1 - np.exp(-5 * training / rounds)
    accuracy = float(np.clip(0.1 + (final - 0.1) * progress + 0.004 * rng.standard_normal(), 0, 1))
    common, rare = accuracy + lag / 2, accuracy - lag / 2
    return {
        "accuracy": accuracy,
        "loss": 2.3 * (1 - 0.8 * progress),
        "class_accuracy": [common] * 5 + [rare] * 5,
        "group_accuracy": {"common": common, "rare": rare},
        "client_accuracy": {
            "mean": accuracy,
            "std": 0.04 + lag / 2,
            "p10": rare,
            "min": rare - 0.1,
        },
    }


def _holds(rng: np.random.Generator, common: np.ndarray) -> np.ndarray:
    shares = np.where(common[:, None], np.r_[np.ones(5), np.full(5, 0.02)],
                      np.r_[np.full(5, 0.02), np.ones(5)])  # fmt: skip
    return rng.poisson(shares * rng.gamma(1.5, 12, size=shares.shape))
