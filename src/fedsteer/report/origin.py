"""Where numbers come from: the command, the machine, the time, as the records tell."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fedsteer.records import Run
from fedsteer.report.entries import look, number
from fedsteer.report.tables import duration, markdown

PAUSE = 300.0
"""Seconds without a run after which the next one begins another sitting."""


def origin(runs: Sequence[Run], commands: Sequence[str] = ()) -> str:
    """Markdown: the commands as a block, then a line on machine and time."""
    block = "\n".join(f"    {' '.join(command.split())}" for command in commands)
    facts = [
        f"{len(runs)} runs",
        *_common(runs, "fedsteer {}", "version"),
        *_common(runs, "Python {}", "environment", "python"),
        *_common(runs, "torch {}", "environment", "torch"),
        *_machine(runs),
        *_time(runs),
    ]
    return "\n\n".join([*([block] if block else []), markdown(", ".join(facts)) + "."])


def ran_alone(runs: Sequence[Run]) -> bool:
    """Whether each run had the machine to itself, so that its time is its own.

    Runs in lock-step, or side by side, share theirs. An archive does not tell: how its runs were
    made is not for its reader to guess.
    """
    times = []
    for run in runs:
        began, seconds = _moment(look(run.manifest, "created")), number(run.result, "seconds")
        if run.packed is not None or began is None or (seconds is None and run.finished):
            return False
        if seconds is not None:
            times.append((began, seconds))
    free = 0.0
    for began, seconds in sorted(times):
        start = max(began, free)
        if start >= began + 1:  # records give the start in whole seconds
            return False
        free = start + seconds
    return True


def _common(runs: Sequence[Run], form: str, *keys: str) -> list[str]:
    """The values that occur, of a fact that is known."""
    found = dict.fromkeys(look(run.manifest, *keys) for run in runs)
    known = [str(value) for value in found if value is not None]
    return [form.format(" and ".join(sorted(known)))] if known else []


def _machine(runs: Sequence[Run]) -> list[str]:
    devices = dict.fromkeys(look(run.manifest, "environment", "device") for run in runs)
    found = []
    for device in devices:
        if device == "cpu":
            found += _common(runs, "{} CPU cores", "environment", "cores")
        elif device is not None:
            found.append(str(device))
    return found


def _time(runs: Sequence[Run]) -> list[str]:
    """From the first run's start to the last one's end, as runs share a machine, without pauses."""
    times = []
    for run in runs:
        began, seconds = _moment(look(run.manifest, "created")), number(run.result, "seconds")
        if began is None or seconds is None:
            return []
        times.append((began, began + seconds))
    sittings: list[list[float]] = []
    for began, ended in sorted(times):
        if sittings and began < sittings[-1][1] + PAUSE:
            sittings[-1][1] = max(sittings[-1][1], ended)
        else:
            sittings.append([began, ended])
    whole = duration(sum(ended - began for began, ended in sittings))
    if len(sittings) == 1:
        return [f"{whole} from the first start to the last end"]
    return [f"{whole} in {len(sittings)} sittings"]


def _moment(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
