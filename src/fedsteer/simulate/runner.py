"""One run on disk: records, checkpoints, resume, and a clean stop on Ctrl-C.

A checkpoint holds the simulation and how long every record file was when it was taken. Resuming
cuts the files back to that and goes on: after a kill at any moment the finished run leaves the
same records and model, byte for byte, as one that was never interrupted.
"""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

import fedsteer
from fedsteer.errors import ConfigurationError, DataError
from fedsteer.records import RecordWriter, Run, read_checkpoint, write_checkpoint
from fedsteer.records.files import plain
from fedsteer.records.writer import STREAMS
from fedsteer.simulate.entries import Entry
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.loop import Happened, Simulation
from fedsteer.simulate.world import World, build_world

CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a round."""

    trained: int
    rounds: int
    number: int
    phase: str
    active: int
    accuracy: float | None


Watch = Callable[[Progress], None]


class Interrupted(Exception):
    """Ctrl-C or a polite kill; the last finished round is on disk."""


def run_entry(
    experiment: Experiment,
    entry: Entry,
    seed: int,
    folder: Path,
    *,
    resume: bool = False,
    watch: Watch | None = None,
    trackers: list[Callable[[Happened], None]] | None = None,
) -> Run:
    """Run one entry under one seed into `folder`; a finished run is left as it is."""
    found = Run(folder)
    if found.finished or (folder / CHECKPOINT).exists():
        _same_run(found, experiment, entry, seed)
        if not resume:
            raise ConfigurationError(
                f"{folder} already holds this run; --resume goes on with it, --out starts elsewhere"
            )
        if found.finished:
            return found
    world = build_world(_as_before(experiment, found), seed, entry.everybody)
    simulation = Simulation(world, entry.build(experiment, seed))
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists():
        arrays, meta = read_checkpoint(checkpoint)
        try:
            simulation.restore(arrays, meta["simulation"])
            offsets, spent = meta["offsets"], meta["seconds"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{checkpoint} is damaged: {error!r}") from error
    else:
        offsets, spent = None, 0.0
    with RecordWriter(folder) as records, _polite() as stopping:
        # Without a checkpoint nothing that an earlier attempt left here counts.
        records.rewind(offsets or dict.fromkeys(STREAMS, 0))
        if offsets is None:
            records.manifest(_manifest(world, entry))
        began = perf_counter()

        def save() -> None:
            arrays, meta = simulation.pack()
            whole = {"simulation": meta, "offsets": records.offsets()}
            write_checkpoint(
                checkpoint, arrays, whole | {"seconds": spent + perf_counter() - began}
            )

        for happened in simulation.rounds():
            records.append("rounds", happened.row)
            records.append("timing", happened.timing)
            for row in happened.clients:
                records.append("clients", row)
            for track in trackers or []:
                track(happened)
            if watch is not None:
                watch(_progress(simulation, happened))
            if stopping():
                save()
                raise Interrupted
            if simulation.number % experiment.run.checkpoint_every == 0:
                save()
        save()
        if simulation.watched:
            arrays = {
                "coordinates": np.stack(simulation.watched),
                "watched": np.array(simulation.watch),
            }
            write_checkpoint(folder / "arrays.safetensors", arrays, {})
        records.finish(
            {"finished": True} | simulation.result() | {"seconds": spent + perf_counter() - began}
        )
    return Run(folder)


def _progress(simulation: Simulation, happened: Happened) -> Progress:
    return Progress(
        trained=simulation.trained,
        rounds=simulation.world.experiment.run.rounds,
        number=simulation.number,
        phase=happened.row["phase"],
        active=happened.row["active"],
        accuracy=simulation.last.get("accuracy"),
    )


def _same_run(found: Run, experiment: Experiment, entry: Entry, seed: int) -> None:
    """Refuse to mix two different runs in one folder."""
    if not (found.folder / "manifest.json").exists():
        raise DataError(f"{found.folder} has a checkpoint but no manifest.json")
    before = found.manifest
    now = {"rule": _rule_record(entry), "seed": seed, "experiment": experiment.as_dict()}
    for name, value in now.items():
        if _comparable(name, before.get(name)) != _comparable(name, plain(value)):
            raise ConfigurationError(
                f"{found.folder} holds a run with another {name}; choose another --out"
            )


def _comparable(name: str, value: Any) -> Any:
    """Without what says nothing about this run's numbers (what the rule is told stands in `rule`).

    The number of rounds is no such thing: a warm-up takes place in the rounds after the last one.
    """
    ignored = {
        "experiment": ("seeds", "rules", "variants", "options", "title"),
        "run": ("checkpoint_every", "baseline"),
    }
    if name not in ignored or not isinstance(value, dict):
        return value
    kept = {key: entry for key, entry in value.items() if key not in ignored[name]}
    return {key: _comparable(key, entry) for key, entry in kept.items()}


def _as_before(experiment: Experiment, found: Run) -> Experiment:
    """Engine and threads of the run that is resumed, so that numbers do not change midway."""
    if not (found.folder / CHECKPOINT).exists():
        return experiment
    engine = found.manifest["engine"]
    return experiment.changed({"run.engine": engine["name"], "run.threads": engine["threads"]})


def _rule_record(entry: Entry) -> dict[str, Any]:
    return {
        "label": entry.label,
        "name": entry.rule,
        "preset": entry.preset,
        "options": dict(entry.options),
    }


def _manifest(world: World, entry: Entry) -> dict[str, Any]:
    experiment = world.experiment
    odds = world.participation.probabilities
    return {
        "format": 1,
        "version": fedsteer.__version__,
        "rule": _rule_record(entry),
        "seed": world.seed,
        "experiment": experiment.as_dict(),
        "environment": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "device": _device_name(experiment.run.device),
        },
        "engine": {
            "name": world.engine.name,
            "device": experiment.run.device,
            "threads": world.threads,
        },
        "data": {
            "name": world.dataset.name,
            "classes": world.dataset.classes,
            "checksums": dict(world.dataset.checksums),
            "label_groups": world.label_groups,
        },
        "clients": _client_record(world, odds),
        "dim": world.network.dim,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _client_record(world: World, odds: Any) -> dict[str, Any]:
    """Who holds what; left out for populations too large to look at."""
    if world.clients > 2_000:
        return {"count": world.clients}
    groups = [world.partition.group_names[group] for group in world.partition.group]
    return {
        "count": world.clients,
        "sizes": world.sizes,
        "data_group": groups,
        "probabilities": odds,
        "holds": world.holds,
    }


def _device_name(device: str) -> str:
    return str(torch.cuda.get_device_name(device)) if device != "cpu" else "cpu"


@contextmanager
def _polite() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM finish the round in hand first; a second Ctrl-C does not wait."""
    caught: list[int] = []

    def remember(number: int, frame: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    try:
        before = {
            number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError:  # not in the main thread: whoever runs us decides about signals
        yield lambda: False
        return
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
