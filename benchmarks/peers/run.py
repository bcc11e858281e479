"""The same federated work on fedsteer and other simulators, each in an environment of its own.

    python benchmarks/peers/run.py [--workload a] [--peers pfl,flower] [--repeats N] [--out FILE]

The first run makes an environment for every peer from the lists beside this file, which takes some
minutes. fedsteer and the plain loop use the Python that runs this file. benchmarks/README.md says
how to read the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.peers.measure import measure  # noqa: E402
from benchmarks.peers.processes import PEERS  # noqa: E402
from benchmarks.peers.protocol import save_work  # noqa: E402
from benchmarks.peers.table import to_text  # noqa: E402

from fedsteer.bench import machine  # noqa: E402
from fedsteer.bench.measure import OURS, REFERENCE, Plan  # noqa: E402
from fedsteer.bench.workloads import WORKLOADS, make_work  # noqa: E402

OTHERS = [name for name in PEERS if name not in (OURS, REFERENCE)]
PLANS = {
    "a": Plan(warm_up=5, trials=8, block=10, repeats=25, lead_in=2),
    "b": Plan(warm_up=1, trials=2, block=1, repeats=9, lead_in=1),
    "c": Plan(warm_up=1, trials=2, block=1, repeats=9, lead_in=1),
}


def environment(peer: str, root: Path) -> str:
    """The interpreter of a peer's environment, made again if its list has changed."""
    wanted, folder = (HERE / f"{peer}.txt").read_text(), root / peer
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"setting up {peer} in {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "-r", str(HERE / f"{peer}.txt")]
        subprocess.run(install, check=True)
        stamp.write_text(wanted)
    return str(python)


def listed(text: str, known: Iterable[str], parser: argparse.ArgumentParser) -> list[str]:
    """The names of a comma-separated list."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            parser.error(f"unknown {name!r}, known: {', '.join(known)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description="fedsteer beside other simulators.")
    parser.add_argument("--workload", default="a,b,c", help="of a, b, c; default: all")
    parser.add_argument("--peers", default=",".join(OTHERS), help="of pfl, fedjax, flower")
    parser.add_argument(
        "--repeats", type=int, help="repetitions; default: 25 of (a), 9 of (b) and (c)"
    )
    parser.add_argument("--out", type=Path, help="write everything to this JSON file")
    parser.add_argument("--environments", type=Path, default=HERE / ".venvs")
    parser.add_argument("--setup", action="store_true", help="only make the environments")
    options = parser.parse_args()
    keys = listed(options.workload, WORKLOADS, parser)
    peers = listed(options.peers, OTHERS, parser)
    if options.repeats is not None and options.repeats < 2:
        parser.error("--repeats must be at least 2")
    pythons = dict.fromkeys((OURS, REFERENCE), sys.executable)
    pythons |= {peer: environment(peer, options.environments.absolute()) for peer in peers}
    if options.setup:
        return 0
    facts = machine.facts()
    print(machine.in_words(facts))
    results = []
    for key in keys:
        plan, work = PLANS[key], make_work(WORKLOADS[key])
        if options.repeats is not None:
            plan = replace(plan, repeats=options.repeats)
        with tempfile.TemporaryDirectory(prefix="fedsteer-bench-") as name:
            folder = Path(name)
            save_work(work, folder)
            cores = facts["cores"]
            sides = [PEERS[peer].side(python, folder, cores) for peer, python in pythons.items()]
            results.append(measure(work, plan, sides, progress))
        print(f"\n{to_text(results[-1], sides)}", flush=True)
    if options.out is not None:
        found = {"machine": facts, "workloads": results}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any(result["failures"] for result in results) else 0


def progress(words: str) -> None:
    """Where it is."""
    print(f"  {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
