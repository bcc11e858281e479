"""The crash matrix: what breaks, where and at which call; and the tables of what became of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from fedsteer.draws import generator
from fedsteer.records.names import BEFORE, CHECKPOINT, RESULT
from tests.chaos import worlds
from tests.chaos.power import LOSSES
from tests.chaos.strikes import (
    BAD,
    FULL,
    KILL,
    PARENT_KILL,
    Result,
    Seen,
    Strike,
    ask,
    calls_of,
    damage_and_resume,
    strike_and_resume,
)
from tests.chaos.worlds import World

KILLS = (KILL, PARENT_KILL)
LEAST_KILLS = 200
"""With a checkpoint, in the long form."""


@dataclass(frozen=True)
class Plan:
    """Of a world: every how many-eth call is hit by each fault, and how many are damaged."""

    world: World
    every: dict[str, int]
    resumes: int = 0  # the same for kills of a resume
    damages: int = 0


def power(every: int) -> dict[str, int]:
    return dict.fromkeys(LOSSES, every)


LONG = (
    Plan(worlds.ALONE, {KILL: 1, BAD: 4, FULL: 3} | power(8), resumes=2, damages=24),
    Plan(worlds.EVERY_ROUND, {KILL: 2}),
    Plan(worlds.GROUP, {KILL: 4, BAD: 16}),
    Plan(worlds.WORKER, {KILL: 4, BAD: 16, FULL: 8}),
    Plan(worlds.PARENT, {PARENT_KILL: 4}),
    Plan(worlds.FLOWER, {KILL: 7, BAD: 30, FULL: 10} | power(60), resumes=10, damages=12),
    Plan(worlds.FLOWER_SELDOM, {KILL: 2} | power(12)),
)
SHORT = (
    Plan(worlds.ALONE, {KILL: 25, BAD: 51, FULL: 30} | power(73), resumes=25, damages=2),
    Plan(worlds.FLOWER_SELDOM, {KILL: 25}),
)


def results_of(plans: Sequence[Plan], place: Path) -> Iterator[Result]:
    """Break everything that is planned, in folders below `place`."""
    for plan in plans:
        yield from _Broken(plan, place / plan.world.name).results()


@final
class _Broken:
    """A world, a run of it that nothing broke, and those that something did."""

    def __init__(self, plan: Plan, place: Path) -> None:
        self.world, self.plan, self.place = plan.world, plan, place
        place.mkdir(parents=True)
        whole = place / "whole"
        self.calls = calls_of(self.world, whole)
        self.whole = self.world.left(whole)

    def results(self) -> Iterator[Result]:
        for fault, every in self.plan.every.items():
            able = [n for n, call in enumerate(self.calls) if fault != FULL or call.kind == "write"]
            yield from self._struck(Strike(fault, at) for at in able[every // 2 :: every])
        if self.plan.resumes or self.plan.damages:
            half = self._half()
            yield from self._struck_again(half)
            yield from self._damaged(half)

    def _struck(self, strikes: Iterable[Strike], base: Path | None = None) -> Iterator[Result]:
        for strike in strikes:
            with _Folder(self.place / "run", base) as folder:
                found = strike_and_resume(self.world, folder, strike, self.whole)
            if found is not None:
                yield found

    def _half(self) -> Path:
        """Killed with two checkpoints and with rounds to go, after which both are replaced."""
        for at in range(len(self.calls) * 6 // 10, len(self.calls)):
            half = self.place / f"half-{at}"
            ask(self.world, half, Strike(KILL, at))
            if (half / CHECKPOINT).exists() and (half / BEFORE).exists():  # not between two renames
                return half
        raise AssertionError(f"{self.world.name} never has two checkpoints")

    def _struck_again(self, half: Path) -> Iterator[Result]:
        """The process that resumes is killed, too."""
        if every := self.plan.resumes:
            with _Folder(self.place / "run", half) as folder:
                count = len(calls_of(self.world, folder))
            yield from self._struck((Strike(KILL, n) for n in range(0, count, every)), half)

    def _damaged(self, half: Path) -> Iterator[Result]:
        for number in range(self.plan.damages):
            names = [(CHECKPOINT,), (BEFORE,), (CHECKPOINT, BEFORE)][min(2, number % 5)]
            with _Folder(self.place / "run", half) as folder:
                spoil = _spoiler([folder / name for name in names], number)
                yield damage_and_resume(self.world, folder, spoil, self.whole)


class _Folder:
    """A folder for one run, empty or a copy; gone afterwards."""

    def __init__(self, path: Path, base: Path | None) -> None:
        self.path, self.base = path, base

    def __enter__(self) -> Path:
        if self.base is not None:
            shutil.copytree(self.base, self.path)
        return self.path

    def __exit__(self, *error: Any) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _spoiler(paths: Sequence[Path], number: int) -> Callable[[], bool]:
    """Damages these files at random; whether one of two is left."""

    def spoil() -> bool:
        for path in paths:
            draw = generator(number, f"damage of {path.name}")
            content = np.frombuffer(path.read_bytes(), np.uint8).copy()
            first, last = sorted(draw.choice(len(content), 2, replace=False).tolist())
            match draw.integers(3):
                case 0:  # flipped bits
                    places = draw.choice(len(content), draw.integers(1, 64), replace=False)
                    content[places] ^= np.uint8(1 << draw.integers(8))
                case 1:
                    content = content[:last]
                case _:  # a block that the disk lost
                    content[first : last + 1] = ~content[first : last + 1]
            path.write_bytes(content.tobytes())
        return len(paths) == 1

    return spoil


def place_of(call: Seen) -> str:
    """Where in a run that is."""
    name = call.file.removesuffix(".new")
    match call.kind, name:
        case "write", _ if name.endswith(".jsonl"):
            return "while rows are written"
        case "write", _ if name == RESULT:
            return "while result.json is written"
        case "write", _ if name == CHECKPOINT:
            return "while a checkpoint is written"
        case "fsync", _ if name.endswith(".jsonl"):
            return "after the rows, before their sync"
        case "fsync", _ if call.file.endswith(".new"):
            return "before the sync of a new file"
        case "fsync", _:
            return "before the sync of a folder"
        case "rename", _ if name == BEFORE:
            return "before the two renames of a checkpoint"
        case "rename", _ if name == CHECKPOINT:
            return "between the two renames of a checkpoint"
        case "rename", _:
            return "before another rename"
        case "truncate", _:
            return "while rows are cut back"
        case "remove", _:
            return "before a file is removed"
    return "while another file is written"


def tables(results: Sequence[Result]) -> str:
    """What became of the runs, and where the kills hit."""
    columns = ("runs hit", "with a checkpoint", "resumed equal", "refused in one line", "failures")
    rows = {}
    for fault, world in dict.fromkeys((one.fault, one.world) for one in results):
        ours = [one for one in results if (one.fault, one.world) == (fault, world)]
        rows[f"{fault}: {world}"] = _counts(ours)
    rows["all"] = _counts(results)
    hits: dict[str, tuple[int, ...]] = {}
    killed = [one for one in results if one.fault in KILLS and one.call is not None]
    for place in sorted({place_of(one.call) for one in killed if one.call}):
        ours = [one for one in killed if one.call and place_of(one.call) == place]
        hits[place] = (len(ours), sum(one.checkpoint for one in ours))
    hits["all kills"] = (len(killed), sum(one.checkpoint for one in killed))
    return f"{_table('fault', columns, rows)}\n\n{_table('killed', columns[:2], hits)}"


def _counts(results: Sequence[Result]) -> tuple[int, ...]:
    return (
        len(results),
        sum(one.checkpoint for one in results),
        sum(one.equal for one in results),
        sum(one.refused for one in results),
        sum(bool(one.failure) for one in results),
    )


def _table(first: str, columns: Sequence[str], rows: dict[str, tuple[int, ...]]) -> str:
    width = max(map(len, [first, *rows]))
    lines = [f"| {first:{width}} | {' | '.join(columns)} |"]
    lines.append(f"| {'-' * width} | {' | '.join('-' * (len(c) - 1) + ':' for c in columns)} |")
    for name, numbers in rows.items():
        cells = [f"{number:>{len(c)}}" for number, c in zip(numbers, columns, strict=True)]
        lines.append(f"| {name:{width}} | {' | '.join(cells)} |")
    return "\n".join(lines)


def kills_with_checkpoint(results: Iterable[Result]) -> int:
    return sum(one.checkpoint for one in results if one.fault in KILLS)
