"""The runs that are broken: tiny ones of the simulator and of Flower on a grid in one process."""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final
from unittest.mock import patch

from fedsteer.records import checkpoint, read_checkpoint
from fedsteer.records.checkpoint import PARTS
from fedsteer.records.names import BEFORE, BEST, CHECKPOINT, MODEL
from fedsteer.simulate.cells import plan_cells
from fedsteer.simulate.compare import compare_cells
from fedsteer.simulate.executors.lockstep import run_in_lockstep
from tests.chaos.child import files_in
from tests.flower.drifting_clients import FILES, INITIAL, evaluate, strategy_of, world
from tests.flower.fake import arrays
from tests.simulate.small import exact_files, run_small, small


class World(ABC):
    """Something that runs in a folder to its end, from the beginning or from where it was."""

    name: str
    target = "."
    """The folder in it in which the disk fails."""

    @abstractmethod
    def run(self, folder: Path) -> None: ...

    @abstractmethod
    def left(self, folder: Path) -> dict[str, Any]:
        """What must not differ by a bit from an unbroken run."""


@final
@dataclass(frozen=True)
class Alone(World):
    """A run of the simulator in the process that was started."""

    name: str
    rule: str
    settings: dict[str, Any] = field(default_factory=dict)

    def run(self, folder: Path) -> None:
        run_small(folder, self.rule, resume=True, **self.settings)

    def left(self, folder: Path) -> dict[str, Any]:
        return exact_files(folder) | {"names": files_in(folder)}


RULES = ["fedavg", "fedsteer"]
IN_RULES = {rule: f"{rule}/seed-0" for rule in RULES}


def _left_by_two(folder: Path) -> dict[str, Any]:
    found = {rule: exact_files(folder / place) for rule, place in IN_RULES.items()}
    return found | {"names": files_in(folder)}


@final
@dataclass(frozen=True)
class Group(World):
    """Two runs in lock-step."""

    name: str

    def run(self, folder: Path) -> None:
        experiment = small({"seeds": 1, "run.engine": "batched"})
        run_in_lockstep(plan_cells(experiment, RULES, folder), lambda cell, progress: None)

    def left(self, folder: Path) -> dict[str, Any]:
        return _left_by_two(folder)


@final
@dataclass(frozen=True)
class Workers(World):
    """A comparison in two worker processes; the disk of one of them fails."""

    name: str
    target = IN_RULES["fedsteer"]

    def run(self, folder: Path) -> None:
        forked = multiprocessing.get_context("fork")  # with everything imported, and our disk
        with patch.object(multiprocessing, "get_context", lambda method: forked):
            cells = plan_cells(small({"seeds": 1}), RULES, folder)
            compare_cells(cells, jobs=2, resume=True)

    def left(self, folder: Path) -> dict[str, Any]:
        return _left_by_two(folder)


@final
@dataclass(frozen=True)
class Flower(World):
    """A strategy in a ServerApp."""

    name: str
    rule: str
    options: dict[str, Any] = field(default_factory=dict)
    large: int = checkpoint.LARGE

    def run(self, folder: Path) -> None:
        with patch.object(checkpoint, "LARGE", self.large):
            strategy_of(self.rule, folder, **self.options).start(
                world(), arrays(**INITIAL), num_rounds=6, evaluate_fn=evaluate
            )

    def left(self, folder: Path) -> dict[str, Any]:
        saved = {name: read_checkpoint(folder / name)[0] for name in (CHECKPOINT, BEFORE)}
        found: dict[str, Any] = {
            f"{name}: {key}": array.tobytes()
            for name, stored in saved.items()
            for key, array in stored.items()
        }
        whole = {name: (folder / name).read_bytes() for name in (*FILES, MODEL, BEST)}
        # A part that no checkpoint names may stay until the next one is written.
        names = {name for name in files_in(folder) if not name.startswith(PARTS)}
        return found | whole | {"names": names}


ALONE = Alone(name="a run alone", rule="fedsteer")
EVERY_ROUND = Alone(
    name="a run, checkpoint every round", rule="scaffold", settings={"run__checkpoint_every": 1}
)
GROUP = Group(name="a group in lock-step")
WORKER = Workers(name="a worker of a comparison")
PARENT = Workers(name="the parent of a comparison")
FLOWER = Flower(name="Flower, checkpoint in parts", rule="fedsteer", large=24)
FLOWER_SELDOM = Flower(
    name="Flower, checkpoint every 2", rule="fedvarp", options={"checkpoint_every": 2}
)
