"""File names in a run's folder (see `fedsteer.records`), and labels of runs in tables."""

from pathlib import Path

FORMAT = 1
"""Version of the record files, written to the manifest."""
SEED = "seed-"
"""A comparison keeps its runs in RULE/seed-0, RULE/seed-1, ..."""
STREAMS = ("timing", "clients", "rounds")
"""In the order in which they reach the disk: who finds the row of a round finds the others too."""
MANIFEST = "manifest.json"
ARRAYS = "arrays.safetensors"
MODEL = "model.safetensors"
BEST = "best.safetensors"
CHECKPOINT = "checkpoint.safetensors"
BEFORE = "checkpoint-before.safetensors"
"""The checkpoint before it, in case that one is damaged."""
FAILURE = "failure.json"
PRIVACY = "privacy.json"
RESULT = "result.json"
SHEET = "sheet.json"
"""Which table or figure of the paper some records are."""
FULL = "full"
"""The entry of a comparison in which every client takes part in every round."""


def remedy(folder: Path) -> str:
    """What helps if a run's folder cannot be continued from."""
    return f"restore {folder} from a copy, or remove it to start over"


def stream_file(stream: str) -> str:
    return f"{stream}.jsonl"


def label_of(entry: str) -> str:
    """How tables name "fedavg", "fedsteer:practical", "full" or a variant."""
    name, _, preset = entry.partition(":")
    name = "full participation" if name == FULL else name
    return name if preset in ("", "paper") else f"{name} ({preset})"
