"""What a server step costs: time against bare matrix products, memory, scaling.

    python benchmarks/server_step.py [--quick] [--out FILE.json]

Everything printed is a ratio of medians of interleaved repetitions in one process, so that a busy
or slow machine disturbs both sides alike. Each library and number of threads gets a fresh process.
The parts are in `costs/`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from costs.step_parts import (
    FULL,
    QUICK,
    Scale,
    measure_population,
    measure_scaling,
    measure_search,
    measure_step,
)
from costs.step_tables import show
from costs.timing import in_fresh_process, machine, version


def work(part: str, library: str, threads: int, scale: Scale) -> dict[str, Any]:
    """Measure one part in this process."""
    if library == "torch":
        import torch

        torch.set_num_threads(threads)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "step": lambda: measure_step(scale, library),
        "population": lambda: measure_population(scale, library),
        "search": lambda: measure_search(scale),
        "scaling": lambda: measure_scaling(scale, library),
    }
    return parts[part]()


def spawn(part: str, library: str, threads: int, quick: bool) -> dict[str, Any]:
    """Measure one part in a process of its own."""
    arguments = ["--worker", part, library, str(threads)] + ["--quick"] * quick
    result: dict[str, Any] = in_fresh_process(__file__, arguments, threads)
    return result


def measure(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything, one part after the other."""
    scale = QUICK if quick else FULL
    libraries = ["numpy"] + ["torch"] * (find_spec("torch") is not None)
    rows = []
    for library in libraries:
        for threads in scale.threads:
            say(f"step and population, {library}, threads: {threads}")
            step = spawn("step", library, threads, quick)
            population = spawn("population", library, threads, quick)
            rows.append(
                {"library": library, "threads": threads, "step": step, "population": population}
            )
    say("search")
    found = spawn("search", "numpy", 1, quick)
    say("scaling")
    return {
        "machine": machine(),
        "versions": {name: version(name) for name in ["fedsteer", *libraries]},
        "scale": vars(scale),
        "rows": rows,
        "search": found,
        "scaling": spawn("scaling", "numpy", 1, quick),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--out", type=Path, help="write all numbers as JSON to this file")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.worker:
        part, library, threads = chosen.worker
        found = work(part, library, int(threads), QUICK if chosen.quick else FULL)
        print(json.dumps(found))
        return
    results = measure(chosen.quick, lambda line: print(f"... {line}", file=sys.stderr))
    print(show(results))
    if chosen.out:
        chosen.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
