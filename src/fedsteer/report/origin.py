"""Where numbers come from: the command, the machine and the time in the records."""

from collections.abc import Sequence
from datetime import datetime
from math import inf

from fedsteer.records import Run
from fedsteer.records.files import look, number
from fedsteer.report.tables import duration, markdown

PAUSE = 300.0  # seconds without a run, after which the next one begins another sitting


def origin(runs: Sequence[Run], commands: Sequence[str] = ()) -> str:
    """Markdown: the commands as a block, then a line on machine and time."""
    block = "\n".join(f"    {' '.join(command.split())}" for command in commands)
    facts = [
        f"{len(runs)} runs",
        *_common(runs, "fedsteer {}", "version"),
        *_common(runs, "Python {}", "environment", "python"),
        *_common(runs, "torch {}", "environment", "torch"),
    ]
    for device in dict.fromkeys(look(run.manifest, "environment", "device") for run in runs):
        if device == "cpu":
            facts += _common(runs, "{} CPU cores", "environment", "cores")
        elif device is not None:
            facts.append(str(device))
    if times := _times(runs):
        facts.append(_sittings(times))
    words = markdown(", ".join(facts)) + "."
    return f"{block}\n\n{words}" if block else words


def _common(runs: Sequence[Run], form: str, *keys: str) -> list[str]:
    """The values that a fact has in these runs, if it is known."""
    known = {str(value) for run in runs if (value := look(run.manifest, *keys)) is not None}
    return [form.format(" and ".join(sorted(known)))] if known else []


def _sittings(times: Sequence[tuple[float, float]]) -> str:
    """From the first start to the last end without pauses, since runs share a machine."""
    until, spent, sittings = -inf, 0.0, 0
    for began, ended in times:
        if began >= until + PAUSE:
            sittings, until = sittings + 1, began
        spent += max(ended - until, 0.0)
        until = max(until, ended)
    where = "from the first start to the last end" if sittings == 1 else f"in {sittings} sittings"
    return f"{duration(spent)} {where}"


def _times(runs: Sequence[Run]) -> list[tuple[float, float]]:
    """Start and end of every run, in order; none if one is unknown."""
    times = []
    for run in runs:
        try:
            began = datetime.fromisoformat(str(look(run.manifest, "created"))).timestamp()
        except ValueError:
            return []
        if (seconds := number(run.result, "seconds")) is None:
            return []
        times.append((began, began + seconds))
    return sorted(times)
