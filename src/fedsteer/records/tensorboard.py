"""Live TensorBoard scalars, one set per round."""

from pathlib import Path
from typing import Any

from fedsteer.errors import ConfigurationError, extra
from fedsteer.records.rows import Tracker

SCALARS = ("accuracy", "loss", "train_loss", "variance", "delta_norm", "bound_factor", "active")


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
