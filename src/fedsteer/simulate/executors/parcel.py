"""The files of a run on their way between machines.

Packing reads the checkpoint first: what is appended to the records meanwhile lies behind the
offsets it holds and is cut off on resume. Unpacking writes it after the records, and the result
last, so that a kill in between leaves a folder that goes on or is finished, never a broken one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsteer.records.files import write_atomically
from fedsteer.records.names import (
    ARRAYS,
    CHECKPOINT,
    FAILURE,
    MANIFEST,
    MODEL,
    RESULT,
    STREAMS,
    stream_file,
)

Parcel = dict[str, NDArray[np.uint8]]
"""File name -> content; arrays, because Ray moves those between processes without copies."""

IN_ORDER = (
    MANIFEST, *map(stream_file, STREAMS), CHECKPOINT, ARRAYS, MODEL, FAILURE, RESULT,
)  # fmt: skip


def pack(folder: Path) -> Parcel:
    """All files of a run as they are now."""
    names = [CHECKPOINT, *(name for name in IN_ORDER if name != CHECKPOINT)]
    return {
        name: np.fromfile(folder / name, np.uint8) for name in names if (folder / name).exists()
    }


def unpack(parcel: Parcel, folder: Path) -> None:
    """Make the run in `folder` what the parcel says; a reason to fail that is gone goes."""
    if FAILURE not in parcel:
        (folder / FAILURE).unlink(missing_ok=True)
    for name in IN_ORDER:
        if name in parcel:
            write_atomically(folder / name, parcel[name].data)
    if RESULT in parcel:
        (folder / CHECKPOINT).unlink(missing_ok=True)
