"""What the files in a run's folder are called (see `fedsteer.records`)."""

from __future__ import annotations

FORMAT = 1  # of all files together
SEED = "seed-"  # a comparison has its runs in RULE/seed-0, ...
MANIFEST = "manifest.json"
STREAMS = ("rounds", "clients", "timing")  # without their ending
ARRAYS = "arrays.safetensors"
MODEL = "model.safetensors"
CHECKPOINT = "checkpoint.safetensors"
FAILURE = "failure.json"
RESULT = "result.json"


def stream_file(stream: str) -> str:
    """The file of one of STREAMS."""
    return f"{stream}.jsonl"
