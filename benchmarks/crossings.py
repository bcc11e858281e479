"""How often one server step crosses from file to file, and how much code a rule imports.

    python benchmarks/crossings.py [--rule fedsteer] [--preset practical]

A crossing is a call from one file of fedsteer into a function of another. The caller is the nearest
fedsteer file on the stack, so library code in between hides nothing. The call of `step` itself
counts, returns do not. There are 100 clients, each present with probability 0.1, and updates of
1,000 weights as tensors, as in the simulator; the step shown is the median one of rounds 31 to 60.
FedSteer is shown without `local_rate` and with it; the simulator passes it, and drift is corrected.

The import closure is the rule's module and every fedsteer module it imports when it is loaded,
directly or through others. A package's `__init__.py` counts only if a name is imported from it.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

import fedsteer

SOURCE = Path(fedsteer.__file__).resolve().parent
CLIENTS, DIM, ODDS, STEADY, ROUNDS = 100, 1_000, 0.1, 30, 60
LOCAL_RATE = 0.1


class Crossing(NamedTuple):
    """One call."""

    caller: str  # a file below src/fedsteer
    called: str
    function: str


def median_step(name: str, preset: str, **options: Any) -> list[Crossing]:
    """The crossings of a typical step after the first rounds."""
    rule = fedsteer.make_rule(name, preset=preset, **options)
    draw = np.random.default_rng(0)
    state = rule.init(DIM, np.ones(CLIENTS), like=torch.zeros(DIM))
    steps = []
    for number in range(1, ROUNDS + 1):
        present = np.flatnonzero(draw.random(CLIENTS) < ODDS)
        clients = rule.plan(state, number, present.tolist()).everyone
        updates = draw.standard_normal((len(clients), DIM)).astype(np.float32)
        round = fedsteer.Round(
            number=number,
            clients=clients,
            updates=torch.from_numpy(updates),
            probabilities=np.full(len(clients), ODDS),
            steps=[5] * len(clients),
            model=torch.zeros(DIM),
        )
        step, crossings = watch(rule.step, state, round)
        state = step.state
        steps.append(crossings)
    return sorted(steps[STEADY:], key=len)[(ROUNDS - STEADY) // 2]


def watch(work: Callable[..., Any], *arguments: Any) -> tuple[Any, list[Crossing]]:
    """What `work` returns, and its crossings in order."""
    found: list[Crossing] = []

    def record(frame: FrameType, event: str, _: Any) -> None:
        called = file_of(frame)
        if event == "call" and called is not None:
            outside = frame.f_back
            while outside is not None and file_of(outside) is None:
                outside = outside.f_back
            caller = file_of(outside) if outside is not None else "(caller)"
            if caller != called:
                found.append(Crossing(caller or "", called, frame.f_code.co_name))

    sys.setprofile(record)
    try:
        result = work(*arguments)
    finally:
        sys.setprofile(None)
    return result, found


def file_of(frame: FrameType) -> str | None:
    """The file of a frame below src/fedsteer; None for any other code."""
    path = Path(frame.f_code.co_filename)
    return path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else None


def to_table(crossings: list[Crossing]) -> str:
    """One row for consecutive calls between the same two files, in the order of the calls."""
    rows = []
    for (caller, called), calls in groupby(crossings, key=lambda crossing: crossing[:2]):
        counts = Counter(crossing.function for crossing in calls)
        functions = [f"{name} x {n}" if n > 1 else name for name, n in counts.items()]
        rows.append((caller, called, ", ".join(functions)))
    first, second = (max(len(row[place]) for row in rows) for place in (0, 1))
    return "\n".join(f"{a:<{first}}  ->  {b:<{second}}  {names}" for a, b, names in rows)


def closure(module: str) -> dict[str, int]:
    """Every module that a module imports, itself included, with its number of lines."""
    found: dict[str, int] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            text = path_of(name).read_text(encoding="utf-8")
            found[name] = len(text.splitlines())
            waiting += imported(ast.parse(text))
    return found


def imported(tree: ast.Module) -> Iterator[str]:
    """The fedsteer modules that a module imports when it is loaded, in any but type-only code."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "fedsteer")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedsteer":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if path_of(inner).exists() else str(node.module)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def path_of(module: str) -> Path:
    """The file of a module, whether it exists or not."""
    path = SOURCE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def main() -> None:
    parser = argparse.ArgumentParser(description="Calls from file to file in one server step.")
    parser.add_argument("--rule", default="fedsteer", choices=sorted(fedsteer.RULES))
    parser.add_argument("--preset", default="practical", choices=("paper", "practical"))
    options = parser.parse_args()
    kind = fedsteer.RULES[options.rule]
    variants: list[dict[str, float]] = [{}]
    if any(entry.name == "local_rate" for entry in fields(kind.options_type)):
        variants.append({"local_rate": LOCAL_RATE})
    for more in variants:
        crossings = median_step(options.rule, options.preset, **more)
        made = ", ".join(
            [f"preset {options.preset}", *(f"{n}={value}" for n, value in more.items())]
        )
        print(to_table(crossings))
        print(f"\n{len(crossings)} crossings in one step of {options.rule}, {made}\n")
    module = kind.__module__
    modules = closure(module)
    for name, lines in sorted(modules.items()):
        print(f"{lines:>6}  {name}")
    print(f"\n{sum(modules.values()):,} lines in {len(modules)} modules imported by {module}")


if __name__ == "__main__":
    main()
