"""Records of a run: files that a person can read and pandas can load in one line.

    manifest.json           what was run: configuration, versions, environment, data, clients
    rounds.jsonl            one row per round:    pandas.read_json(path, lines=True)
    clients.jsonl           one row per client touched in a round, and what became of its update
    timing.jsonl            when each round ended, and its seconds; separate, so that reruns leave
                            the rest bit-identical
    arrays.safetensors      coordinates of watched clients over the rounds
    checkpoint.safetensors  everything needed to resume
    failure.json            why the run failed, if it did
    result.json             written last: the run is complete

`writer` writes a folder, `reader` reads it; `pack` makes one small archive of many runs, which
`reader` reads too.
"""

from fedsteer.records.checkpoint import load_server, read_checkpoint, save_server, write_checkpoint
from fedsteer.records.pack import pack_records
from fedsteer.records.reader import Run, find_runs, without_copies
from fedsteer.records.sheets import read_sheet, runs_of_sheet
from fedsteer.records.writer import RecordWriter

__all__ = [
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
