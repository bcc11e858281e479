"""What a checkpoint must have in common with the run that resumes it, and what it may lack."""

from logging import WARNING
from pathlib import Path
from typing import Any

from fedsteer.errors import ConfigurationError, DataError, StateError
from fedsteer.flower.asking import log
from fedsteer.records import Checkpoint
from fedsteer.records.files import table
from fedsteer.records.names import remedy
from fedsteer.rules import Rule
from fedsteer.steering.state import State

TOO_LONG = {"arrays": "other arrays", "population": "another population"}
"""Settings whose values are too long for an error message, in words."""


def refuse_other_setup(now: dict[str, Any], path: Path, run: dict[str, Any]) -> None:
    """Refuse the checkpoint of a run with other settings than those of `now`.

    An option that it does not have is newer and had its default.
    """
    before = table(run, "setup")
    if not (before and table(run, "identities")):
        raise ConfigurationError(
            f"{path} is not a checkpoint of a Flower run; {remedy(path.parent)}"
        )
    before = {"privacy": None} | before  # it had none before there was any
    for key in now:
        if key in before and before[key] != now[key]:
            difference = TOO_LONG.get(key, f"{key} = {before[key]}, not {now[key]}")
            raise ConfigurationError(
                f"{path.parent} holds a checkpoint with {difference}; choose another folder, or "
                "set resume=False to start over there"
            )


def without_lost(rule: Rule, state: State, found: Checkpoint, folder: Path | None) -> State:
    """The state without what was lost on disk, if the rule can go on without it."""
    lost = dict(found.lost)
    if "initial" in lost and rule.phase(state) == "train":
        del lost["initial"], found.arrays["initial"]  # only a warm-up goes back to it
    try:
        state = rule.lose(state, {name.removeprefix("rule/"): rows for name, rows in lost.items()})
    except StateError as error:
        raise DataError(f"{found.warning}, and {error}; {remedy(folder or Path())}") from error
    for name, rows in lost.items():
        log(WARNING, "fedsteer: rows %s of %s begin anew", rows, name)
    return state
