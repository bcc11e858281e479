"""What happened in a run: files a person can read and pandas can load in one line.

    manifest.json        what was run: configuration, versions, environment, engine, data, clients
    rounds.jsonl         one row a round:       pandas.read_json(path, lines=True)
    clients.jsonl        one row per client touched in a round, and what became of its update
    timing.jsonl         seconds per round; kept apart so that the rest is bit-identical on a rerun
    arrays.safetensors   coordinates of watched clients over the rounds
    failure.json         why the run could not go on, where it could not
    result.json          written last: the run is complete

`writer` appends, `reader` loads; `pack` makes one small archive of many runs, which `reader` loads
as well; `checkpoint` is the one checkpoint format.
"""

from fedsteer.records.checkpoint import read_checkpoint, write_checkpoint
from fedsteer.records.pack import pack_records
from fedsteer.records.reader import Run, find_runs, read_sheet, runs_of_sheet, without_copies
from fedsteer.records.writer import RecordWriter

__all__ = [
    "RecordWriter",
    "Run",
    "find_runs",
    "pack_records",
    "read_checkpoint",
    "read_sheet",
    "runs_of_sheet",
    "without_copies",
    "write_checkpoint",
]
