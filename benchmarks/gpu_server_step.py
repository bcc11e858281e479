"""A whole FedSteer server step on a GPU against reading its inputs once.

    python benchmarks/gpu_server_step.py [--dim 11000000] [--core 10] [--active 10] [--anywhere]

The yardstick is the time to read the k columns and the m updates once at the copy bandwidth
measured in the same run. The goals are kernels within 1.2 times that, and a whole step within 3.

kernel              what the GPU itself takes (needs Triton), between two events queued behind other
                    work
pass                adds the launch, and the sums on their way to the host
step                `rule.step` from one idle GPU to the next: checks, pass, solve, commit, and
                    writing the new columns of core clients
drawn               each round's clients are drawn from CLIENTS, so chance decides how many are core
                    clients; the other rows show what writing columns costs
behind other work   counts from when the GPU has finished what was queued before the step (as when
                    it still computes the updates); until then the host prepares

Twenty microseconds of Python are a tenth of the yardstick, so a core shared with other processes
shows. Before each block of steps the process therefore moves to another core if its own has become
slow, unless told `--anywhere`. The table has the median of all steps and the time that the fastest
tenth of them took: if the two are far apart, other processes were at work.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsteer import Round, make_rule
from fedsteer.steering.kernels import Sweep, kernels_for
from fedsteer.steering.kernels.fused import launch, suitable_plan

BLOCKS, WARM_UP, REPEATS, CLIENTS = 40, 10, 20, 100
OTHER_WORK = 600_000  # cycles: longer than the host takes to get ready
BEHIND = "behind other work"


class Cores:
    """Those this process may use. On a shared host, a core whose other hyperthread is busy runs at
    half the speed."""

    def __init__(self, *, choose: bool) -> None:
        self.usable = sorted(os.sched_getaffinity(0)) if choose else []
        self.seen: list[float] = []

    def settle(self) -> None:
        """Stay if Python runs about as fast as it ever did, or else move to the fastest core."""
        if not self.usable or (self.seen and _python() < 1.1 * min(self.seen)):
            return
        found = []
        for core in self.usable:
            os.sched_setaffinity(0, {core})
            found.append((_python(), core))
        os.sched_setaffinity(0, {min(found)[1]})
        self.seen += [milliseconds for milliseconds, _ in found]


def _python() -> float:
    """Milliseconds for work like that of a step on the host, at best."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        values = np.zeros(10)
        for number in range(500):
            values = values + number
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


class Times(NamedTuple):
    """Milliseconds."""

    median: float
    tenth: float | None = None  # a tenth of all took no longer


def timed(works: Mapping[str, Callable[[], object]], cores: Cores) -> dict[str, Times]:
    """A block of each in turn, so that other work on the host disturbs all of them alike."""
    times: dict[str, list[float]] = {label: [] for label in works}
    gpu = torch.cuda.current_stream()  # asking the device instead takes ten microseconds more
    for _ in range(BLOCKS):
        for label, work in works.items():
            cores.settle()
            for number in range(WARM_UP + REPEATS):
                gpu.synchronize()
                start = time.perf_counter()
                work()
                gpu.synchronize()
                if number >= WARM_UP:
                    times[label].append(1e3 * (time.perf_counter() - start))
    return {
        label: Times(median(found), float(np.quantile(found, 0.1)))
        for label, found in times.items()
    }


def device_milliseconds(work: Callable[[], object], repeats: int = 15) -> float:
    """Median time on the GPU itself: the launch happens while the GPU is still busy."""
    times = []
    for number in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(5_000_000)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if number >= 3:
            times.append(begin.elapsed_time(end))
    return median(times)


def copy_bandwidth(cores: Cores) -> float:
    """Bytes read and written per second."""
    source = torch.rand(1 << 28, device="cuda")
    target = torch.empty_like(source)
    times = timed({"copy": lambda: target.copy_(source)}, cores)
    return 8e3 * source.numel() / times["copy"].median


def step_of(
    cohorts: Iterator[list[int]], clients: int, core: int, updates: Tensor
) -> Callable[[], None]:
    """FedSteer's step with one cohort after the other, after every column was filled."""
    active, dim = updates.shape
    rule = make_rule("fedsteer", core_set=list(range(core)), ridge=0.5)
    state = rule.init(dim, np.full(clients, 10), like=updates)
    numbers = itertools.count(1)

    def round_of(cohort: list[int]) -> Round:
        return Round(
            number=next(numbers),
            clients=cohort,
            updates=updates[: len(cohort)],
            probabilities=np.full(len(cohort), 0.1),
        )

    for first in range(0, core, active):
        everyone = list(range(first, min(core, first + active)))
        state = rule.step(state, round_of(everyone)).state
    rounds = iter([round_of(next(cohorts)) for _ in range(BLOCKS * (WARM_UP + REPEATS))])

    def step() -> None:
        nonlocal state
        state = rule.step(state, next(rounds)).state

    return step


def behind(work: Callable[[], object]) -> None:
    """The work, queued while the GPU is busy."""
    torch.cuda._sleep(OTHER_WORK)
    work()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dim", type=int, default=11_000_000)
    parser.add_argument("--core", type=int, default=10)
    parser.add_argument("--active", type=int, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--anywhere", action="store_true", help="on whatever core the system picks")
    options = parser.parse_args()
    dim, core, active = options.dim, options.core, options.active
    cores = Cores(choose=not options.anywhere)
    copy = copy_bandwidth(cores)
    floor = 4 * dim * (core + active) / copy * 1e3
    print(f"copy {copy / 1e12:.2f} TB/s; reading H and G once: {floor:.3f} ms")
    updates = torch.randn(active, dim, device="cuda")
    basis = torch.randn(core, dim, device="cuda")
    plain = Sweep(
        updates=updates,
        weights=np.full(active, 0.1),
        basis=basis,
        coefficients=np.full(core, 0.1),
    )
    kernels = kernels_for(updates)
    rows = {"read once": Times(floor)}
    works: dict[str, Callable[[], object]] = {}
    with_gram = replace(plain, gram_of=np.arange(active))
    for label, sweep in (("pass", plain), ("pass with Gram matrix", with_gram)):
        works[label] = partial(kernels.one_pass, sweep)
        if plan := suitable_plan(sweep):
            alone = partial(launch, plan, sweep)
            rows[label.replace("pass", "kernel")] = Times(device_milliseconds(alone))
    clients, most = max(CLIENTS, core + active), min(core, active)

    def drawn() -> Iterator[list[int]]:
        draw = np.random.default_rng(1)
        return (draw.permutation(clients)[:active].tolist() for _ in itertools.count())

    for written in sorted({0, 1, 3, 5, most} & {*range(most + 1)}):
        cohort = list(range(core - written, core - written + active))
        works[f"step, {written} core client(s)"] = step_of(
            itertools.repeat(cohort), clients, core, updates
        )
    works[f"step, {active} of {clients} drawn"] = step_of(drawn(), clients, core, updates)
    alike = {
        f"drawn, {BEHIND}": step_of(drawn(), clients, core, updates),
        f"{most} core, {BEHIND}": step_of(itertools.repeat(cohort), clients, core, updates),
    }
    works |= {label: partial(behind, step) for label, step in alike.items()}
    works[BEHIND] = partial(torch.cuda._sleep, OTHER_WORK)
    rows |= timed(works, cores)
    other_work = rows.pop(BEHIND).median
    rows |= {label: Times(rows[label].median - other_work) for label in alike}
    print(f"{'':<34}  median              fastest tenth")
    for label, found in rows.items():
        told = [value for value in found if value is not None]
        both = "   ".join(f"{value:8.3f} ms {value / floor:5.2f} x" for value in told)
        print(f"{label:<34}{both}")
    if cores.seen:
        slow = [seen / min(cores.seen) for seen in cores.seen]
        print(
            f"cores: the fastest took {min(cores.seen):.3f} ms for a piece of Python, the median "
            f"{median(slow):.2f} times as long, the slowest {max(slow):.2f}"
        )
    if options.out:
        milliseconds = {label: found._asdict() for label, found in rows.items()}
        facts = {"dim": dim, "core": core, "active": active, "milliseconds": milliseconds}
        options.out.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
