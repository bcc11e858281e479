"""The numbers of the last round in Prometheus' text format, for node_exporter to collect."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from fedsteer.errors import ConfigurationError
from fedsteer.records.files import number, write_atomically
from fedsteer.records.rows import Tracker

ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def prometheus(path: str | Path, **labels: str) -> Tracker:
    """A tracker that replaces the file at `path`, for node_exporter's textfile collector.

    The column `loss` becomes the metric `fedsteer_loss`; an entry of a table such as `training`
    has the label `name`, and `by` if that is inside another one. `labels` are added to every
    metric: two federations on one machine need a label that tells them apart.
    """
    file = Path(path)
    if file.suffix != ".prom":
        raise ConfigurationError(f"the collector reads files that end in .prom, not {file.name}")

    def track(row: dict[str, Any]) -> None:
        lines = []
        for metric, entries in groupby(_numbers(row), lambda entry: entry[0][0]):
            lines.append(f"# TYPE fedsteer_{metric} gauge")
            for (_, *inside), value in entries:
                own = dict(zip(("name", "by"), reversed(inside), strict=False))
                lines.append(f"fedsteer_{metric}{_in_braces(labels | own)} {value!r}")
        write_atomically(file, "".join(line + "\n" for line in lines).encode())

    return track


def _numbers(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], float]]:
    """All numbers of a row and where they are in it; texts and lists are left out."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _numbers(entry, *path, key)
    elif (found := number(value)) is not None:
        yield path, found


def _in_braces(labels: dict[str, str]) -> str:
    pairs = [f'{name}="{str(value).translate(ESCAPES)}"' for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""
