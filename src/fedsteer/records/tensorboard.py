"""Live TensorBoard scalars, one set per round."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsteer.errors import ConfigurationError, extra

SCALARS = ("accuracy", "loss", "train_loss", "variance", "delta_norm", "bound_factor", "active")


def tensorboard_tracker(folder: Path) -> Callable[[Any], None]:
    """A tracker that writes the scalars of each round to `folder`/tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise ConfigurationError(f"--track tensorboard needs it: {extra('tracking')}") from None
    writer: Any = None

    def track(round: Any) -> None:
        nonlocal writer
        row = round.row
        if writer is None:  # drop rounds that are run again after a kill
            writer = SummaryWriter(str(folder / "tensorboard"), purge_step=row["round"])
        for name in SCALARS:
            if row.get(name) is not None:
                writer.add_scalar(name, row[name], row["round"])
        for group, value in row.get("group_accuracy", {}).items():
            writer.add_scalar(f"accuracy/{group}", value, row["round"])
        writer.flush()

    return track
