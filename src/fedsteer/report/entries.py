"""Which runs belong together: an entry is one rule in one experiment, over its seeds.

An entry is a row of the table and a colour on the page.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fedsteer.errors import DataError
from fedsteer.records import Run
from fedsteer.records.files import look, number
from fedsteer.records.names import SEED, label_of
from fedsteer.report.statistics import Estimate, estimate

Item = TypeVar("Item")
Key = TypeVar("Key")

NAMED = 4  # the most experiments a title names
FULL = label_of("full")
"""FedAvg with full participation: a yardstick, not FedAvg."""


@dataclass(frozen=True)
class Entry:
    """The runs of one rule in one experiment, by seed."""

    experiment: str
    label: str  # the rule with preset and options
    rule: str  # the name alone; full participation is called by its label
    runs: tuple[Run, ...]
    estimates: Mapping[str, Estimate | None] = field(default_factory=dict)  # see `summarise`

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that count in means: the finished ones."""
        return tuple(run for run in self.runs if run.finished)

    @property
    def shown(self) -> tuple[Run, ...]:
        """The runs drawn as curves: the finished ones, or all while none is."""
        return self.counted or self.runs

    @property
    def finished(self) -> int:
        return len(self.counted)

    @property
    def unfinished(self) -> int:
        return len(self.runs) - self.finished

    @property
    def failures(self) -> list[str]:
        failed = [(run, run.failure) for run in self.runs if not run.finished]
        return [f"seed {run.seed}: {why}" for run, why in failed if why]

    def over_seeds(self, *keys: str) -> Estimate | None:
        """A number of `result.json`."""
        return estimate(number(run.result, *keys) for run in self.counted)

    @property
    def accuracy(self) -> Estimate | None:
        return self.estimates["accuracy"]


def gather(runs: Iterable[Run]) -> list[Entry]:
    """Entries by experiment, in the order of the runs, and by label."""
    unique = list({run.folder.resolve(): run for run in runs}.values())
    if not unique:
        raise DataError("there are no runs to report")
    return [
        Entry(
            experiment=experiment,
            label=label,
            rule=FULL
            if label.startswith(FULL)
            else str(look(own[0].manifest, "rule", "name") or label),
            runs=tuple(sorted(own, key=lambda run: (run.seed or 0, str(run.folder)))),
        )
        for name, together in grouped(unique, lambda run: run.experiment).items()
        for experiment, part in _apart(name, together).items()
        for label, own in sorted(grouped(part, lambda run: run.label).items())
    ]


def named(entries: Sequence[Entry]) -> dict[str, Entry]:
    """Entries by name: the label, after the experiment if there are several."""
    if len({entry.experiment for entry in entries}) == 1:
        return {entry.label: entry for entry in entries}
    return {f"{entry.experiment or 'unnamed'}: {entry.label}": entry for entry in entries}


def title_of(runs: Iterable[Run]) -> str:
    """The title of the experiment, or the names of a few."""
    known = list(runs)
    found = {str(look(run.manifest, "experiment", "title") or run.experiment) for run in known}
    if len(found) == 1:
        return found.pop() or "fedsteer"
    names = dict.fromkeys(run.experiment for run in known if run.experiment)
    return ", ".join(names) if 0 < len(names) <= NAMED else "fedsteer"


def _by_settings(experiment: str, runs: list[Run]) -> dict[str, list[Run]]:
    """Runs with other data or length belong to another experiment, whatever its name."""
    settings = {run: _settings(run) for run in runs}
    distinct = dict.fromkeys(pair for own in settings.values() for pair in own.items())
    values = Counter(key for key, _ in distinct)

    def title(run: Run) -> str:
        # A setting that a run does not have is no difference: its records may be older.
        own = {key: value for key, value in settings[run].items() if values[key] > 1}
        words = ", ".join(f"{key}={own[key]}" for key in values if key in own)
        return f"{experiment} ({words})" if words else experiment

    return grouped(runs, title)


def _settings(run: Run) -> dict[str, str]:
    """What all runs of a comparison have in common, as text."""
    common = ("data", "partition", "participation", "model", "training", "server", "privacy")
    experiment = look(run.manifest, "experiment")
    found = {
        f"{section}.{key}": json.dumps(value)
        for section in common
        if isinstance(table := look(experiment, section), dict)
        for key, value in table.items()
        if (section, key) != ("data", "folder")  # depends on the machine only
        and f"{section}.{key}" not in (look(experiment, "tuned") or ())
    }
    if (trace := look(run.manifest, "trace")) is not None:
        found["participation.trace"] = str(trace)[:8]  # a checksum: file names may differ
    rounds = look(experiment, "run", "rounds")
    if rounds is None and run.finished:  # the plan is not recorded
        rounds = look(run.result, "rounds")
    return found if rounds is None else found | {"run.rounds": json.dumps(rounds)}


def _apart(experiment: str, runs: list[Run]) -> dict[str, list[Run]]:
    """Comparisons that share a name but have different folders are different experiments."""
    by_settings = _by_settings(experiment, runs)
    if not (clash := _clash(runs)):
        return by_settings
    by_folder = grouped(runs, lambda run: f"{experiment} ({_comparison(run).name})".strip())
    # Runs made one by one have folders of their own, whether they belong together or not.
    alone = len(by_folder) == 1 or any(_comparison(run) == run.folder.resolve() for run in runs)
    if alone and not any(_clash(part) for part in by_settings.values()):
        return by_settings
    if len(by_folder) == 1:
        raise DataError(
            f"{clash[0].folder} and {clash[1].folder} are runs of the same rule with the same "
            "seed; report them apart"
        )
    found: dict[str, list[Run]] = {}
    for title, part in by_folder.items():
        found |= _apart(title, part)
    return found


def _comparison(run: Run) -> Path:
    """The folder of the comparison a run belongs to (DIR/rule/seed-0), or the run's own."""
    folder = run.folder.resolve()
    return folder.parent.parent if folder.name.startswith(SEED) else folder


def _clash(runs: list[Run]) -> list[Run]:
    """Runs of one rule with one seed, if there are two."""
    known = [run for run in runs if run.seed is not None]
    found = grouped(known, lambda run: (run.label, run.seed)).values()
    return next((same for same in found if len(same) > 1), [])


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by their key, both in the order they come in."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def in_order(names: Collection[str], order: Collection[str]) -> list[str]:
    """Those of `order` first, in its order, then the others as they come."""
    first = [name for name in order if name in names]
    return first + [name for name in names if name not in order]
