"""Frames on a terminal: in place, and in colour with rich. In a file one is below the other."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from fedsteer.watch.folder import LiveFolder
from fedsteer.watch.text import Line, lines_of, plain

Show = Callable[[list[Line]], None]
WITHOUT_TERMINAL = (100, 60)
"""Columns and lines if the output goes to a file or a pipe."""


def watch(folder: LiveFolder, every: float) -> None:
    """Show frame after frame until all runs have ended."""
    with _screen() as show:
        while True:
            frame = folder.look()
            show(lines_of(frame, *_size()))
            if frame.ended:
                return
            time.sleep(every)


def print_once(folder: LiveFolder) -> None:
    """Print one frame."""
    with _screen() as show:
        show(lines_of(folder.look(), *_size()))


def _size() -> tuple[int, int]:
    """Columns and lines."""
    return shutil.get_terminal_size((80, 24) if sys.stdout.isatty() else WITHOUT_TERMINAL)


@contextmanager
def _screen() -> Iterator[Show]:
    if not sys.stdout.isatty():
        yield _appended()
    elif find_spec("rich") is None:  # it comes with the extras, not with the core
        yield _replaced
    else:
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        with Live(auto_refresh=False) as live:
            yield lambda lines: live.update(
                Group(*(Text.assemble(*line, no_wrap=True) for line in lines)), refresh=True
            )


def _replaced(lines: list[Line]) -> None:
    """Prints a frame where the one before was, as far as there is room."""
    room = _size()[1] - 1
    print("\x1b[H\x1b[J" + "\n".join(map(plain, lines[:room])), flush=True)


def _appended() -> Show:
    """Prints each frame that says anything new below its first line, which has the clock."""
    before: list[str] = []

    def show(lines: list[Line]) -> None:
        nonlocal before
        text = [plain(line) for line in lines]
        if text[1:] != before[1:] or not before:
            print("\n".join(text) + "\n", flush=True)
        before = text

    return show
