"""Which runs belong together: an entry is one rule in one experiment, over its seeds.

An entry is a row of the table and a colour on the page. Records of other programs may lack keys,
so everything is looked up with `look`, which gives None for what is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.records.names import SEED, label_of

Key = TypeVar("Key")

COMMON = ("data", "partition", "participation", "model", "training", "server")
"""Sections of an experiment that are the same for all rules of a comparison."""
NAMED = 4
"""The most experiments a title names."""
FULL = label_of("full")
"""FedAvg with full participation: a yardstick, not FedAvg."""


@dataclass(frozen=True)
class Entry:
    """The runs of one rule in one experiment, by seed."""

    experiment: str
    label: str
    rule: str  # the name without preset or options; full participation is called by its label
    runs: tuple[Run, ...]

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that enter means: the finished ones."""
        return tuple(run for run in self.runs if run.finished)

    @property
    def shown(self) -> tuple[Run, ...]:
        """The runs drawn as curves: the finished ones, or all while none is."""
        return self.counted or self.runs


def look(value: Any, *keys: str) -> Any:
    """`value[key][key]...`, or None if there is no such thing."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def number(value: Any, *keys: str) -> float | None:
    """The finite number found there, or None."""
    found = look(value, *keys)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
        return None
    return float(found)


def seed_of(run: Run) -> int | None:
    """The seed of a run, if it is known."""
    seed = number(run.manifest, "seed")
    return None if seed is None else int(seed)


def gather(runs: Iterable[Run]) -> list[Entry]:
    """Entries in the order of experiment and label."""
    unique = list({run.folder.resolve(): run for run in runs}.values())
    if not unique:
        raise DataError("there are no runs to report")
    by_name = _grouped(unique, lambda run: _text(run, "experiment", "name"))
    found = [
        Entry(
            experiment=experiment,
            label=label,
            rule=label if label == FULL else _text(members[0], "rule", "name") or label,
            runs=tuple(sorted(members, key=lambda run: (seed_of(run) or 0, str(run.folder)))),
        )
        for name, together in by_name.items()
        for experiment, part in _apart(name, together)
        for label, members in _grouped(part, _label).items()
    ]
    return sorted(found, key=lambda entry: (entry.experiment, entry.label))


def names_of(entries: Sequence[Entry]) -> list[str]:
    """What to call each entry: its label, after the experiment if there are several."""
    several = len({entry.experiment for entry in entries}) > 1
    return [
        f"{entry.experiment or 'unnamed'}: {entry.label}" if several else entry.label
        for entry in entries
    ]


def title_of(runs: Iterable[Run]) -> str:
    """The title of the experiment, or the names of a few."""
    experiments = [look(run.manifest, "experiment") for run in runs]
    titles = {str(look(one, "title") or look(one, "name") or "fedsteer") for one in experiments}
    if len(titles) == 1:
        return titles.pop()
    names = dict.fromkeys(str(name) for one in experiments if (name := look(one, "name")))
    return ", ".join(names) if 0 < len(names) <= NAMED else "fedsteer"


def _by_settings(experiment: str, runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Runs with other data or length belong to another experiment, whatever its name."""
    settings = [_settings(run) for run in runs]
    varied = [
        key
        for key in dict.fromkeys(key for one in settings for key in one)
        # A setting that a run does not have is no difference: its records may be older.
        if len({one[key] for one in settings if key in one}) > 1
    ]
    words = {
        run.folder: ", ".join(f"{key}={own[key]}" for key in varied if key in own)
        for run, own in zip(runs, settings, strict=True)
    }
    parts = _grouped(runs, lambda run: words[run.folder])
    return [(f"{experiment} ({own})" if own else experiment, part) for own, part in parts.items()]


def _settings(run: Run) -> dict[str, str]:
    """What all runs of a comparison have in common, as text."""
    experiment = look(run.manifest, "experiment")
    found = {
        f"{section}.{key}": json.dumps(value)
        for section in COMMON
        if isinstance(table := look(experiment, section), dict)
        for key, value in table.items()
        if (section, key) != ("data", "folder")  # depends on the machine only
    }
    if (trace := look(run.manifest, "trace")) is not None:
        found["participation.trace"] = str(trace)[:8]  # whatever the file is called
    rounds = look(experiment, "run", "rounds")
    if rounds is None and run.finished:  # the plan is not recorded
        rounds = look(run.result, "rounds")
    return found if rounds is None else found | {"run.rounds": json.dumps(rounds)}


def _apart(experiment: str, runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Comparisons that share a name but have different folders are different experiments."""
    by_settings = _by_settings(experiment, runs)
    if not (clash := _clash(runs)):
        return by_settings
    parts = _grouped(runs, _comparison)
    titles = [folder.name for folder in parts]
    tellable = len(parts) > 1 and len(set(titles)) == len(titles)
    # Runs made one by one have folders of their own, whether they belong together or not.
    alone = not tellable or any(run.folder.resolve() in parts for run in runs)
    if alone and not any(_clash(part) for _, part in by_settings):
        return by_settings
    if not tellable:
        raise DataError(
            f"{clash[0].folder} and {clash[1].folder} are runs of the same rule with the same "
            "seed; report them apart"
        )
    named = zip(titles, parts.values(), strict=True)
    return [
        pair for title, part in named for pair in _apart(f"{experiment} ({title})".strip(), part)
    ]


def _comparison(run: Run) -> Path:
    """The folder of the comparison a run belongs to (DIR/rule/seed-0), or the run's own."""
    folder = run.folder.resolve()
    return folder.parent.parent if folder.name.startswith(SEED) else folder


def _clash(runs: list[Run]) -> list[Run]:
    """Runs of one rule with one seed, if there are two."""
    known = [run for run in runs if seed_of(run) is not None]
    found = _grouped(known, lambda run: (_label(run), seed_of(run))).values()
    return next((same for same in found if len(same) > 1), [])


def _label(run: Run) -> str:
    return _text(run, "rule", "label") or _text(run, "rule", "name") or "unnamed rule"


def _text(run: Run, *keys: str) -> str:
    found = look(run.manifest, *keys)
    return "" if found is None else str(found)


def _grouped(runs: Iterable[Run], key: Callable[[Run], Key]) -> dict[Key, list[Run]]:
    found: dict[Key, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def in_order(names: Collection[str], order: Collection[str]) -> list[str]:
    """Those of `order` first, in its order, then the others as they come."""
    first = [name for name in order if name in names]
    return first + [name for name in names if name not in order]
