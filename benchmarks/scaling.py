"""How cost grows with clients N, weights d, core set k and active clients m, with fitted slopes.

    python benchmarks/scaling.py [--quick] [--out results/scaling]
    python benchmarks/scaling.py --only "step over d" --out results/scaling
    python benchmarks/scaling.py --redraw --out results/scaling

Writes measurements.json, table.md and scaling.svg. Each axis is measured in a process of its own
with one thread; sizes take turns, and the median counts. `--redraw` makes table and picture again
from measurements.json, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from costs.axes import AXES, FULL, NAMES, QUICK, ROUNDS, population, rounds_over_n
from costs.loglog import to_svg
from costs.scaling_table import to_markdown
from costs.timing import in_fresh_process, machine, version


def measure(names: Sequence[str], quick: bool, before: dict[str, Any]) -> dict[str, Any]:
    """These axes anew, the others as they were before."""
    axes = dict(before.get("axes", {}))
    for name in names:
        print(f"... {name}", file=sys.stderr)
        if name == ROUNDS:
            axes[name] = rounds_over_n(QUICK if quick else FULL, __file__, quick)
        else:
            axes[name] = in_fresh_process(__file__, ["--worker", name] + ["--quick"] * quick, 1)
    return {
        "machine": machine(),
        "versions": {name: version(name) for name in ("fedsteer", "numpy", "torch")},
        "plan": asdict(QUICK if quick else FULL),
        "axes": {name: axes[name] for name in NAMES if name in axes},
    }


def draw(folder: Path) -> str:
    """Table and picture from the measurements alone."""
    measured = json.loads((folder / "measurements.json").read_text(encoding="utf-8"))
    table = to_markdown(measured)
    (folder / "table.md").write_text(table, encoding="utf-8")
    (folder / "scaling.svg").write_text(to_svg(measured), encoding="utf-8")
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("results", "scaling"), metavar="DIR")
    parser.add_argument(
        "--only", action="append", choices=NAMES, help="measure only this axis anew"
    )
    parser.add_argument("--redraw", action="store_true", help="measure nothing")
    parser.add_argument("--worker", choices=tuple(AXES), help=argparse.SUPPRESS)
    parser.add_argument("--population", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    plan = QUICK if chosen.quick else FULL
    if chosen.worker:
        print(json.dumps(AXES[chosen.worker](plan)))
        return
    if chosen.population:
        print(json.dumps(population(chosen.population, plan)))
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    target = chosen.out / "measurements.json"
    if not chosen.redraw:
        before = {}
        if chosen.only and target.exists():
            before = json.loads(target.read_text(encoding="utf-8"))
        measured = measure(chosen.only or NAMES, chosen.quick, before)
        target.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    elif not target.exists():
        parser.error(f"{target} does not exist: measure first, without --redraw")
    print(draw(chosen.out))


if __name__ == "__main__":
    main()
