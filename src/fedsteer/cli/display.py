"""What people see while they wait. Rich where it is installed and the output is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedsteer.simulate.runner import Progress

Update = Callable[[float, str], None]
"""Called with the work done so far and a few words about it."""


@contextmanager
def progress_bar(total: float, title: str, quiet: bool) -> Iterator[Update]:
    """A bar on a terminal, nothing otherwise."""
    bar = None if quiet or not sys.stderr.isatty() else _rich_bar()
    if bar is None:
        yield lambda done, words: None
        return
    with bar:
        task = bar.add_task(title, total=total, words="")
        yield lambda done, words: bar.update(task, completed=done, words=words)


def describe(progress: Progress) -> str:
    """Round, accuracy and active clients in a few words."""
    where = f"round {progress.trained}/{progress.rounds}"
    if progress.phase == "warm-up":
        where = f"warm-up round {progress.number}"
    accuracy = "" if progress.accuracy is None else f" · accuracy {progress.accuracy:.3f}"
    return f"{where}{accuracy} · {progress.active} active"


def _rich_bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ModuleNotFoundError:
        return None
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[words]}"),
        console=Console(stderr=True),
        transient=True,
    )
