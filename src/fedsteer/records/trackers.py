"""What shows a run while it lasts: TensorBoard, and Prometheus through node_exporter."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from fedsteer.errors import ConfigurationError, extra
from fedsteer.records.files import number, write_atomically
from fedsteer.records.rows import Tracker

SCALARS = ("accuracy", "loss", "train_loss", "variance", "delta_norm", "bound_factor", "active")
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def tensorboard_tracker(folder: Path) -> Tracker:
    """A tracker that writes the scalars of each round to `folder`/tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise ConfigurationError(f"--track tensorboard needs it: {extra('tracking')}") from None
    writer: Any = None

    def track(row: dict[str, Any]) -> None:
        nonlocal writer
        if writer is None:  # drop rounds that are run again after a kill
            writer = SummaryWriter(str(folder / "tensorboard"), purge_step=row["round"])
        for name in SCALARS:
            if row.get(name) is not None:
                writer.add_scalar(name, row[name], row["round"])
        for group, value in row.get("group_accuracy", {}).items():
            writer.add_scalar(f"accuracy/{group}", value, row["round"])
        writer.flush()

    return track


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
                own = labels | dict(zip(("name", "by"), reversed(inside), strict=False))
                pairs = [f'{name}="{str(text).translate(ESCAPES)}"' for name, text in own.items()]
                braces = f"{{{','.join(pairs)}}}" if pairs else ""
                lines.append(f"fedsteer_{metric}{braces} {value!r}")
        write_atomically(file, "".join(line + "\n" for line in lines).encode())

    return track


def _numbers(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], float]]:
    """All numbers of a row and where they are in it; texts and lists are left out."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _numbers(entry, *path, key)
    elif (found := number(value)) is not None:
        yield path, found
