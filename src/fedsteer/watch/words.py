"""What the terminal and the page say of runs, in the same words."""

from datetime import datetime

from fedsteer.errors import printable
from fedsteer.report.tables import duration, percent, size
from fedsteer.watch.clients import ClientState
from fedsteer.watch.folder import Frame
from fedsteer.watch.run import Details, RunState
from fedsteer.watch.warnings import Warned

STATUSES = ("training", "warm-up", "begun", "quiet", "ended", "failed", "unreadable")
FACTORS = {"step_factor": "step factor", "trust": "trust", "bound_factor": "norm bound"}


def summary(frame: Frame) -> str:
    """How many runs there are of each kind."""
    if not frame.runs:
        return "no run has begun here yet"
    if len(frame.runs) == 1:
        return ""
    return ", ".join(f"{n} {status}" for status in STATUSES if (n := frame.having(status)))


def title(run: RunState) -> str:
    name = run.label or run.name
    return printable(name if run.seed is None else f"{name}, seed {run.seed}")


def progress(run: RunState) -> str:
    if run.status == "warm-up":
        return f"warm-up {run.round}"
    of = f"/{run.rounds}" if run.rounds is not None else ""
    return f"round {run.round}{of}" if run.round else ""


def left(run: RunState) -> str:
    """How long a run will take, or what else it does."""
    if run.status in ("training", "warm-up"):
        return "" if run.left is None else f"{duration(run.left)} left"
    return run.status


def value(run: RunState) -> str:
    return "" if run.value is None else f"{run.measure} {_form(run, run.value)}"


def best(run: RunState) -> str:
    return "" if run.best is None else f"best {point(run, run.best)}"


def point(run: RunState, point: tuple[int, float]) -> str:
    """A point of the curve."""
    return f"{_form(run, point[1])} in round {point[0]}"


def _form(run: RunState, number: float) -> str:
    return f"{percent(number)} %" if run.measure == "accuracy" else f"{number:.4g}"


def where(run: RunState) -> str:
    """Where a run is."""
    running = [progress(run), left(run)]
    if run.pace is not None:
        running.append(f"{duration(run.pace) if run.pace >= 0.1 else 'less than 0.1 s'} a round")
    parts = {
        "begun": ["has begun, no round has ended yet"],
        "quiet": [progress(run), f"no news for {duration(run.silent)}: was it stopped?"],
        "ended": [progress(run), "the run has ended"],
        "failed": [progress(run), f"the run has failed: {printable(run.reason)}"],
        "unreadable": [printable(run.reason)],
    }
    return " · ".join(part for part in parts.get(run.status, running) if part)


def facts(run: RunState) -> dict[str, str]:
    """Numbers of the last round by their names."""
    numbers = run.numbers
    found = {name: f"{numbers[key]:.3g}" for key, name in FACTORS.items() if key in numbers}
    if "fresh" in numbers and run.running:
        asked = f" of {numbers['asked']:.0f} asked" if "asked" in numbers else ""
        found["fresh"] = f"{numbers['fresh']:.0f}{asked}"
    if "server_bytes" in numbers:
        found["server memory"] = size(numbers["server_bytes"])
    return found


def since(client: ClientState, details: Details) -> str:
    """Since when a client is what it is."""
    if client.state == "unseen":
        return ""
    seen = client.state in ("estimated", "away", "stale")
    return f"{'not seen since' if seen else 'since'} {moment(client.since, details)}"


def moment(number: int, details: Details) -> str:
    """A round and, if it is known, the time at which it ended, on this machine's clock."""
    trained = number - details.warm_up
    name = f"round {trained}" if trained > 0 else f"warm-up round {number}"
    try:
        ended = datetime.fromisoformat(details.times[number]).astimezone()
    except (KeyError, ValueError):
        return name
    today = ended.date() == datetime.now().date()
    return f"{name} ({ended:%H:%M})" if today else f"{name} ({ended:%d %b %H:%M})"


def said(warning: Warned) -> str:
    """A warning in words."""
    who = f"{printable(warning.client)} " if warning.client else ""
    by_any = ", by any client" if who else ""
    often = f" ({warning.times} times in all{by_any})" if warning.times > 1 else ""
    return f"{who}{printable(warning.text)}{often}"


def damaged(details: Details) -> str:
    count = details.damaged
    return f"{count} {'line' if count == 1 else 'lines'} of the records cannot be read"
