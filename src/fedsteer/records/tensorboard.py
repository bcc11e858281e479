"""Rounds as TensorBoard scalars, live."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsteer.errors import ConfigurationError, extra

SCALARS = ("accuracy", "loss", "train_loss", "variance", "delta_norm", "bound_factor", "active")


def tensorboard_tracker(folder: Path) -> Callable[[Any], None]:
    """A tracker that writes each round's scalars below `folder`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise ConfigurationError(f"--track tensorboard needs it: {extra('tracking')}") from None
    writer: Any = None

    def track(happened: Any) -> None:
        nonlocal writer
        row = happened.row
        if writer is None:  # rounds from here on that were told before a kill count no more
            writer = SummaryWriter(str(folder / "tensorboard"), purge_step=row["round"])
        for name in SCALARS:
            if row.get(name) is not None:
                writer.add_scalar(name, row[name], row["round"])
        for group, value in row.get("group_accuracy", {}).items():
            writer.add_scalar(f"accuracy/{group}", value, row["round"])
        writer.flush()

    return track
