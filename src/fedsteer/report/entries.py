"""Which runs belong together: an entry is one rule in one experiment, over its seeds.

An entry is a row of the table and a colour on the page. Records of other programs may lack keys,
so everything is looked up with `look`, which answers None for what is not there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.records.names import SEED, label_of

COMMON = ("data", "partition", "participation", "model", "training", "server")
"""Sections of an experiment that rules compared with one another share."""
PLACES = ("data.folder",)
"""Where a machine keeps what has a name of its own."""
NAMED = 4
"""As many experiments have room in a title."""
FULL = label_of("full")
"""The label of FedAvg with everybody present: a yardstick, not FedAvg."""


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
    """`value[key][key]...`, or None where there is no such thing."""
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
    """The seed of a run, where it is known."""
    seed = number(run.manifest, "seed")
    return None if seed is None else int(seed)


def gather(runs: Iterable[Run]) -> list[Entry]:
    """Entries in the order of experiment and label."""
    unique = list({run.folder.resolve(): run for run in runs}.values())
    if not unique:
        raise DataError("there are no runs to report")
    by_experiment: dict[str, list[Run]] = {}
    for run in unique:
        by_experiment.setdefault(_text(run, "experiment", "name"), []).append(run)
    found: list[Entry] = []
    for experiment, members in by_experiment.items():
        for folder, together in _apart(experiment, members):
            for name, part in _by_settings(folder, together):
                found += _entries(name, part)
    return sorted(found, key=lambda entry: (entry.experiment, entry.label))


def names_of(entries: Sequence[Entry]) -> list[str]:
    """What to call each entry: its label, led by the experiment where there are several."""
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
    """Runs on other data, or of other length, are no runs of one experiment whatever its name."""
    settings = [_settings(run) for run in runs]
    varied = [
        key
        for key in dict.fromkeys(key for one in settings for key in one)
        # A setting that a run does not know is no difference: records may be older than it.
        if len({one[key] for one in settings if key in one}) > 1
    ]
    parts: dict[str, list[Run]] = {}
    for run, own in zip(runs, settings, strict=True):
        words = ", ".join(f"{key}={own[key]}" for key in varied if key in own)
        parts.setdefault(f"{experiment} ({words})" if words else experiment, []).append(run)
    return list(parts.items())


def _settings(run: Run) -> dict[str, str]:
    """What all runs of a comparison have in common, as text."""
    experiment = look(run.manifest, "experiment")
    found = {
        f"{section}.{key}": json.dumps(value)
        for section in COMMON
        if isinstance(table := look(experiment, section), dict)
        for key, value in table.items()
        if f"{section}.{key}" not in PLACES
    }
    if (trace := look(run.manifest, "trace")) is not None:
        found["participation.trace"] = str(trace)[:8]  # wherever the file lies
    rounds = look(experiment, "run", "rounds")
    if rounds is None and run.finished:  # who ran it told nobody how many there would be
        rounds = look(run.result, "rounds")
    return found if rounds is None else found | {"run.rounds": json.dumps(rounds)}


def _apart(experiment: str, runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Two comparisons that share a name but lie in different folders are different experiments."""
    if not _clash(runs):
        return [(experiment, runs)]
    parts: dict[Any, list[Run]] = {}
    for run in runs:
        parts.setdefault(_comparison(run), []).append(run)
    titles = [folder.name for folder in parts]
    tellable = len(parts) > 1 and len(set(titles)) == len(titles)
    # Runs that were made one by one have folders of their own, whether they belong together or not.
    if not tellable or any(run.folder.resolve() in parts for run in runs):
        by_settings = _by_settings(experiment, runs)
        if not any(_clash(part) for _, part in by_settings):
            return by_settings
    if not tellable:
        first, second = _clash(runs) or (runs[0], runs[0])
        raise DataError(
            f"{first.folder} and {second.folder} are runs of the same rule with the same seed; "
            "report them apart"
        )
    named = [
        (f"{experiment} ({title})".strip(), part)
        for title, part in zip(titles, parts.values(), strict=True)
    ]
    return [pair for name, part in named for pair in _apart(name, part)]


def _comparison(run: Run) -> Path:
    """The folder of the comparison a run belongs to (DIR/rule/seed-0), or the run's own."""
    folder = run.folder.resolve()
    return folder.parent.parent if folder.name.startswith(SEED) else folder


def _clash(runs: list[Run]) -> tuple[Run, Run] | None:
    seen: dict[tuple[str, int], Run] = {}
    for run in runs:
        seed = seed_of(run)
        if seed is None:
            continue
        other = seen.setdefault((_label(run), seed), run)
        if other is not run:
            return other, run
    return None


def _entries(experiment: str, runs: list[Run]) -> list[Entry]:
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        by_label.setdefault(_label(run), []).append(run)
    return [
        Entry(
            experiment,
            label,
            (label != FULL and _text(members[0], "rule", "name")) or label,
            tuple(sorted(members, key=lambda run: (seed_of(run) or 0, str(run.folder)))),
        )
        for label, members in by_label.items()
    ]


def _label(run: Run) -> str:
    return _text(run, "rule", "label") or _text(run, "rule", "name") or "unnamed rule"


def _text(run: Run, *keys: str) -> str:
    found = look(run.manifest, *keys)
    return "" if found is None else str(found)


def in_order(names: Collection[str], order: Collection[str]) -> list[str]:
    """Those of `order` first, in its order, then the others as they come."""
    first = [name for name in order if name in names]
    return first + [name for name in names if name not in order]
