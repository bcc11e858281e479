"""Progress while runs are executed, if rich is installed and the output is a terminal."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from fedsteer.records import Run
from fedsteer.simulate.cells import Cell
from fedsteer.simulate.compare import compare_cells
from fedsteer.simulate.runner import Interrupted, Progress


@contextmanager
def progress_bar(total: float, title: str, quiet: bool) -> Iterator[Callable[[float, str], None]]:
    """A bar on a terminal, nothing otherwise; what is yielded takes the work done and words."""
    if quiet or not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda done, words: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[words]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, words="")
        yield lambda done, words: bar.update(task, completed=done, words=words)


def describe(progress: Progress, rounds: int) -> str:
    """Round, accuracy and active clients in a few words."""
    where = f"round {progress['training_round']}/{rounds}"
    if progress["phase"] == "warm-up":
        where = f"warm-up round {progress['round']}"
    accuracy = f" · accuracy {progress['accuracy']:.3f}" if "accuracy" in progress else ""
    return f"{where}{accuracy} · {progress['active']} active"


def run_cells(cells: Sequence[Cell], options: argparse.Namespace) -> list[Run]:
    done: dict[Path, float] = {}
    several = len({cell.experiment.name for cell in cells}) > 1
    with progress_bar(len(cells), f"{len(cells)} runs", options.quiet) as update:

        def report(cell: Cell, progress: Progress | None) -> None:
            rounds = cell.experiment.run.rounds
            done[cell.folder] = progress["training_round"] / rounds if progress else 1.0
            words = describe(progress, rounds) if progress else "done"
            name = f"{cell.experiment.name}, " if several else ""
            name += f"{cell.rule.label}, seed {cell.seed}"
            update(sum(done.values()), f"{name}: {words}")

        try:
            return compare_cells(
                cells, jobs=options.jobs, resume=True, report=report, executor=options.executor
            )
        except Interrupted:
            raise KeyboardInterrupt("stopped; the same command continues") from None
