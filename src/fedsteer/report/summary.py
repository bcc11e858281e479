"""A row per rule: accuracy with its interval over seeds, difference to a baseline, costs.

The last round alone is a lottery for rules that swing between label groups, so the mean over the
evaluations of the last third of the training rounds is reported too.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedsteer.errors import unknown
from fedsteer.records import Run
from fedsteer.records.files import look, number
from fedsteer.records.names import label_of
from fedsteer.report.entries import Entry, gather, in_order
from fedsteer.report.statistics import Estimate, estimate, height

TOTALS = (  # keys of result.json; `server_bytes` is the peak
    *("server_bytes", "bytes_up", "bytes_down", "uploads"),
    *("warm_up_rounds", "warm_up_uploads", "seconds", "epsilon"),
)


@dataclass(frozen=True)
class Summary:
    """The rows, best accuracy first within each experiment.

    Their estimates are accuracies, differences and costs, under the names of the CSV's columns.
    Accuracies are shares (0 to 1), memory and traffic are bytes.
    """

    rows: tuple[Entry, ...]
    baseline: str | None  # its label; None if no run is one
    groups: tuple[str, ...]

    @property
    def experiments(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.experiment for row in self.rows))

    def records(self) -> list[dict[str, Any]]:
        """Plain numbers: `<quantity>` is the mean over seeds, `<quantity>_half` its interval."""
        found = []
        for row in self.rows:
            difference = row.estimates["difference"]
            record: dict[str, Any] = {
                "experiment": row.experiment,
                "label": row.label,
                "rule": row.rule,
                "seeds": row.finished,
                "unfinished": row.unfinished,
                "pairs": 0 if difference is None else difference.count,
            }
            for name, one in row.estimates.items():
                record[name] = None if one is None else one.mean
                record[f"{name}_half"] = None if one is None else one.half
            found.append(record | {"failures": "; ".join(row.failures)})
        return found


def summarise(
    runs: Iterable[Run], baseline: str | None = None, order: Collection[str] = ()
) -> Summary:
    """A row per rule.

    baseline   label or name of the rule that differences refer to; by default the baseline the
               runs were made with (`run.baseline`), or fedavg
    order      experiments that come first; the others follow in the order of the runs
    """
    entries = gather(runs)
    # Runs say what they were made to be compared with; it counts if all say the same.
    recorded = {
        look(run.manifest, "experiment", "run", "baseline") for one in entries for run in one.runs
    }
    name = recorded.pop() if len(recorded) == 1 else None
    wanted = baseline or (label_of(name) if isinstance(name, str) else "") or "fedavg"
    # Of each experiment the entry with that label, or else the first rule of that name.
    bases = {entry.experiment: entry for entry in reversed(entries) if entry.rule == wanted}
    bases |= {entry.experiment: entry for entry in entries if entry.label == wanted}
    labels = {base.label for base in bases.values()}
    if baseline is not None and not labels:
        raise unknown("baseline", baseline, {entry.label for entry in entries})
    measured = [look(run.result, "group_accuracy") for one in entries for run in one.counted]
    groups = tuple(dict.fromkeys(name for own in measured if isinstance(own, dict) for name in own))
    rows = [
        replace(entry, estimates=_estimates(entry, bases.get(entry.experiment), groups))
        for entry in entries
    ]
    names = in_order(dict.fromkeys(entry.experiment for entry in entries), order)
    rows.sort(key=lambda row: (names.index(row.experiment), -height(row.accuracy), row.label))
    shown = None if not labels else labels.pop() if len(labels) == 1 else wanted
    return Summary(rows=tuple(rows), baseline=shown, groups=groups)


def _estimates(
    entry: Entry, base: Entry | None, groups: Sequence[str]
) -> dict[str, Estimate | None]:
    return {
        "accuracy": entry.over_seeds("accuracy"),
        "difference": _difference(entry, base, lambda run: number(run.result, "accuracy")),
        "late": estimate(map(Run.late, entry.counted)),
        "late_difference": _difference(entry, base, Run.late),
        "average": estimate(run.late("average_accuracy") for run in entry.counted),
        **{f"accuracy_{name}": entry.over_seeds("group_accuracy", name) for name in groups},
        **{
            f"clients_{name}": entry.over_seeds("client_accuracy", name)
            for name in ("mean", "std", "p10")
        },
        **{name: entry.over_seeds(name) for name in TOTALS},
    }


def _difference(
    entry: Entry, base: Entry | None, measure: Callable[[Run], float | None]
) -> Estimate | None:
    """Paired by seed; None for the baseline itself."""
    if base is None or base is entry:
        return None
    against = {run.seed: run for run in base.counted}
    pairs = [(run, against[run.seed]) for run in entry.counted if run.seed in against]
    return estimate(
        value - before
        for run, other in pairs
        if _same_draws(run, other)
        and (value := measure(run)) is not None
        and (before := measure(other)) is not None
    )


def _same_draws(run: Run, other: Run) -> bool:
    """Whether the seed means the same for both: other versions may divide data otherwise.

    What a record does not tell is no difference.
    """
    held, before = (look(one.manifest, "clients", "holds") for one in (run, other))
    return run.seed is not None and (held is None or before is None or held == before)
