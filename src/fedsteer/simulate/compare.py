"""Many runs: every rule under every seed, with the same draws, wherever they are executed."""

from collections.abc import Sequence
from pathlib import Path

from fedsteer.errors import DamagedRun, check_name
from fedsteer.options import check_number
from fedsteer.records import Run
from fedsteer.simulate.cells import Cell
from fedsteer.simulate.executors.cluster import run_on_ray
from fedsteer.simulate.executors.lockstep import run_in_lockstep, shares
from fedsteer.simulate.executors.processes import run_in_processes
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.runner import Report, found_run, give_up
from fedsteer.simulate.world import build_world, usable_cores

EXECUTORS = ("processes", "ray")
"""Where runs are executed: `--executor` of the command line."""


def compare_cells(
    cells: Sequence[Cell],
    *,
    jobs: int = 0,
    resume: bool = False,
    report: Report = lambda cell, progress: None,
    executor: str = "processes",
) -> list[Run]:
    """Run all cells; raises `Interrupted` after a clean stop, with everything so far on disk.

    `executor` is one of `EXECUTORS`: processes of this machine, or a Ray cluster. The records are
    the same. `jobs` is the most runs at a time; 0 leaves it to the cores there are.
    """
    check_name("executor", executor, EXECUTORS)
    check_number("--jobs", jobs, whole=True, low=0)
    damaged: dict[Path, str] = {}
    for cell in cells:  # refuse before anything is written
        try:
            found_run(cell, resume)
        except DamagedRun as error:
            damaged[cell.folder] = str(error)
    for folder, reason in damaged.items():
        give_up(folder, reason)
    usable = [cell for cell in cells if cell.folder not in damaged]
    if usable and executor == "ray":
        run_on_ray(usable, jobs, report)
    elif usable:
        _run_here(usable, jobs, report)
    return [Run(cell.folder) for cell in cells]


def _run_here(cells: Sequence[Cell], jobs: int, report: Report) -> None:
    experiment = cells[0].experiment
    jobs = jobs or default_jobs(experiment)
    parts = [[cell] for cell in cells]
    if experiment.run.device != "cpu":
        if not build_world(experiment, 0).engine.joins_runs:
            jobs = 1  # one run at a time: several would only wait for each other
        parts = shares(cells, jobs)
    jobs = min(jobs, len(parts))
    if jobs > 1:
        run_in_processes(parts, jobs, report)
        return
    for part in parts:
        run_in_lockstep(part, report)


def default_jobs(experiment: Experiment) -> int:
    """As many processes as cores allow for the threads each run takes; up to four for a GPU."""
    if experiment.run.device != "cpu":
        return max(1, min(4, usable_cores() // 2))
    return max(1, usable_cores() // build_world(experiment, 0).torch_threads)
