"""A frame as lines of text for a terminal of a given size; a line is made of styled pieces."""

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime

from fedsteer.errors import printable
from fedsteer.watch import words
from fedsteer.watch.clients import counts
from fedsteer.watch.folder import Frame
from fedsteer.watch.run import Details, RunState

Line = list[tuple[str, str]]
"""Pieces of text, each with a style of rich."""
BLOCKS = "▁▂▃▄▅▆▇█"
STYLES = {"failed": "red", "unreadable": "red", "gone": "red", "stale": "yellow", "quiet": "yellow",
          "fresh": "green", "estimated": "cyan", "unseen": "dim", "ended": "dim"}  # fmt: skip
NAMED = ("failed", "gone", "stale", "fresh")
"""States whose clients are named."""
NO_BREAK = "\N{NO-BREAK SPACE}"
TAKEN = 18  # lines besides the runs and the warnings
LEAST_ROOM = 4
LEAST_WIDTH = 20


def lines_of(frame: Frame, width: int = 80, height: int = 40) -> list[Line]:
    """The frame, cut to the width and, on all but very small terminals, to the height."""
    room = max((height - TAKEN) // 2, LEAST_ROOM)
    said = "".join(f" · {part}" for part in (words.summary(frame), f"{datetime.now():%X}") if part)
    folder = printable(frame.folder)
    if len(folder) > (wide := max(width - len(said), LEAST_WIDTH)):
        folder = "…" + folder[1 - wide :]
    lines: list[Line] = [[(folder, "bold"), (said, "dim")]]
    if len(frame.runs) > 1:
        lines += [[], *_runs(frame, width, room)]
    if frame.focus is not None:
        lines += [[], *_focus(frame.focus, width)]
    if frame.details is not None:
        lines += _details(frame.details, width, room)
    return [list(_cut(line, width)) for line in lines]


def plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def _runs(frame: Frame, width: int, room: int) -> Iterator[Line]:
    shown = frame.runs[:room]
    wide = max(min(max(len(words.title(run)) for run in shown), width - 50), 10)
    focus = None if frame.focus is None else frame.focus.name
    for run in shown:
        mark = "> " if run.name == focus else "  "
        yield [
            (f"{mark}{words.title(run)[:wide]:<{wide}}", "bold" if mark.strip() else ""),
            (f"  {words.progress(run):<14}", ""),
            (f"  {words.left(run):<13}", STYLES.get(run.status, "")),
            (f"  {words.value(run)}", ""),
        ]
    if more := len(frame.runs) - len(shown):
        yield [(f"  and {more} more", "dim")]


def _focus(run: RunState, width: int) -> Iterator[Line]:
    yield [(words.title(run), "bold")]
    facts = [" ".join(fact) for fact in words.facts(run).items()]
    texts = {
        words.where(run): STYLES.get(run.status, ""),
        " · ".join(part for part in (words.value(run), words.best(run)) if part): "",
        " · ".join(fact.replace(" ", NO_BREAK) for fact in facts): "",
    }
    for text, style in texts.items():
        for line in textwrap.wrap(text, max(width, LEAST_WIDTH)):
            yield [(line.replace(NO_BREAK, " "), style)]


def _details(details: Details, width: int, room: int) -> Iterator[Line]:
    if spark := sparkline([value for _, value in details.curve], min(width, 60)):
        yield [(spark, "cyan")]
    yield []
    for state, count in counts(details.clients).items():
        these = [one for one in details.clients if one.state == state] if state in NAMED else []
        names = [
            printable(one.name) + ("" if state == "fresh" else f" {words.since(one, details)}")
            for one in these[:room]
        ]
        yield [(f"{count:>6} {state:<10}", STYLES.get(state, "")), (", ".join(names), "")]
    if details.warnings or details.damaged:
        yield from ([], [("warnings", "bold")])
    if details.damaged:
        yield [(f"  {words.damaged(details)}", "yellow")]
    for one in details.warnings[:room]:
        yield [(f"  {words.moment(one.round, details)}  ", "dim"), (words.said(one), "yellow")]


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as blocks of eight heights, the last one always; nothing for fewer than two."""
    if len(values) < 2:
        return ""
    step = max(1.0, len(values) / width)
    kept = [values[-1 - int(at * step)] for at in range(int(len(values) / step))][::-1]
    low, high = min(kept), max(kept)
    scale = (len(BLOCKS) - 1) / ((high - low) or 1.0)
    return "".join(BLOCKS[round((value - low) * scale)] for value in kept)


def _cut(line: Line, width: int) -> Iterator[tuple[str, str]]:
    """The pieces of a line that fit; one that is cut ends with a dot-dot-dot."""
    for text, style in line:
        if len(text) > width:
            text = text[: max(width - 1, 0)] + "…" * (width > 0)
        yield text, style
        width -= len(text)
