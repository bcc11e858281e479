"""Records of a run: files that a person can read and pandas can load in one line.

`writer` writes a run's folder, `reader` reads it; `pack` makes one small archive of many runs,
which `reader` reads too. docs/records.md says what is in each file.
"""

from fedsteer.records.checkpoint import load_server, read_checkpoint, save_server, write_checkpoint
from fedsteer.records.pack import pack_records
from fedsteer.records.reader import Run, find_runs, read_sheet, runs_of_sheet, without_copies
from fedsteer.records.writer import Checkpoint, RecordWriter

__all__ = [
    "Checkpoint",
    "RecordWriter",
    "Run",
    "find_runs",
    "load_server",
    "pack_records",
    "read_checkpoint",
    "read_sheet",
    "runs_of_sheet",
    "save_server",
    "without_copies",
    "write_checkpoint",
]
